/* Exports what an interpreter of Python exports: as much of it as is looked at. */
#include <stdint.h>

/* Large enough for all that is read of it. */
uint64_t _PyRuntime[1024];
uint64_t PyCode_Type, PyUnicode_Type, PyBytes_Type;
unsigned long Py_Version;
void Py_NewRef(void) {}
void PyThreadState_GetFrame(void) {}
