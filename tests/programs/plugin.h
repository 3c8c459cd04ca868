/* What plugin.c asks of a plugin. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct plugin_work { int allocs, frees, graphs, graph_launches, failures; size_t bytes; };
/* Two allocations of `bytes`, one captured graph that copies one to the other,
 * launched twice, all checked and freed. `bytes` in the result is for both. */
struct plugin_work plugin_work(size_t bytes, uint32_t value);
int plugin_runtime_version(void);
/* Chooses a device, allocates there at once and frees it; the device that the memory was on, -1 after an error. */
int plugin_device_of_memory(int device);
