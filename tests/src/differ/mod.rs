//! The differential tester: random graph programs, each run natively and under the preload, have to
//! answer the same.
//!
//! * [`work`], [`program`]: programs as data, one JSON object a line
//! * [`order`], [`model`]: what is well defined
//! * [`world`], [`change`], [`blocks`]: runs a program, on the driver or dry
//! * [`api`], [`real`], [`open`], [`params`], [`query`], [`runtime`], [`older`], [`host`]: the driver by the
//!   program's names
//! * [`generate`], [`shapes`]: makes programs
//! * [`run`], [`child`], [`pair`]: runs programs in this process, in another, in two held against each other
//! * [`stacks`]: where threads stand when nothing goes on
//! * [`hunt`], [`shrink`]: many seeds; what is left of a program that differs

pub mod api;
mod blocks;
mod change;
pub mod child;
pub mod generate;
mod host;
pub mod hunt;
pub mod model;
mod objects;
mod older;
mod open;
pub mod order;
pub mod pair;
mod params;
pub mod program;
mod query;
pub(crate) mod random;
pub mod real;
pub mod run;
mod runtime;
mod shapes;
pub mod shrink;
mod stacks;
pub mod work;
pub mod world;
