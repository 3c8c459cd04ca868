/* Stands for a library of ROCm's profilers: its name alone matters. */
int rocprofiler_stands_here(void) { return 1; }
