//! Calls of CUDA: every way in, what they answer under the preload, and what is recorded of them.

mod differential;
mod doors;
mod driver_takes;
mod faults;
mod locations;
mod newer;
mod past;
mod portable;
mod record;
mod submissions;
