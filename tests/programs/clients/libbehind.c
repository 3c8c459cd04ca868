/* A library that another is linked with, and that comes and goes with it. */
int behind(void) { return 1; }
