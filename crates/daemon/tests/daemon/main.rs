//! The daemon as a process, spoken to over its real sockets, with the engine's stand-in for VMs below it: real forks of real
//! processes, no guest. Files and processes are those of a real agent on this machine. Load, and being killed at any moment,
//! are tested with VMs (`tests/e2e`).

#[cfg(test)]
mod audit;
#[cfg(test)]
mod auth;
#[cfg(test)]
mod console;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod files;
#[cfg(test)]
mod forks;
#[cfg(test)]
mod guests;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod http;
#[cfg(test)]
mod life;
#[cfg(test)]
mod lines;
#[cfg(test)]
mod network;
#[cfg(test)]
mod packs;
#[cfg(test)]
mod pause;
#[cfg(test)]
mod ports;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod sandboxes;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod workspaces;
