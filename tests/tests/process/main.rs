//! The process that the shim is in: its start, threads, memory, files, children and end.

mod bad_input;
mod checkpoints;
mod copies;
mod ends;
mod full_disk;
mod host_memory;
mod ledgers;
mod no_memory;
mod own_files;
mod small_stacks;
mod start;
mod stress;
mod thread_storage;
mod turnover;
