//! Scripted scenarios of the sync machine. [`worlds`](super::worlds) runs it in simulated worlds.

mod relay_behaviours;
mod scenarios;
mod script;
