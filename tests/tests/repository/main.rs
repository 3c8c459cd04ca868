//! The repository itself: its layers, its unsafe code, its documents, scripts and packages.

mod goals;
mod gpu_scripts;
mod layers;
mod packages;
mod places;
mod predicates;
mod programs;
mod readme;
mod safety;
mod statics;
mod tools;
