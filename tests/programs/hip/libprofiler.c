/* Stands for a library of ROCm's profilers. With CONFIGURE it has the function by which librocprofiler-register knows a
   profiler; without, it only asks for that function, as librocprofiler-register does, and its name alone matters. */
#ifdef CONFIGURE
void *rocprofiler_configure(unsigned version, const char *runtime, unsigned priority, void *client) {
    (void)version, (void)runtime, (void)priority, (void)client;
    return 0;
}
#else
__attribute__((weak)) extern void *rocprofiler_configure(unsigned, const char *, unsigned, void *);
int rocprofiler_stands_here(void) { return rocprofiler_configure != 0; }
#endif
