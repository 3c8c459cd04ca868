//! The graph cache: few real execs behind many handles, and a program that cannot tell.

mod at_rest;
mod bounded;
mod churn;
mod cold_launch;
mod differ;
mod doors;
mod ends;
mod faults;
mod flat;
mod freed_in_graph;
mod freed_launched;
mod green;
mod hazards;
mod left;
mod reuse;
