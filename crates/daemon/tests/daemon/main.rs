//! The daemon as a process, spoken to over its real sockets, with the engine's stand-in for VMs below it: real forks of real
//! processes, no guest.

#[cfg(test)]
mod auth;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod http;
#[cfg(test)]
mod load;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod sandboxes;
#[cfg(test)]
mod support;
#[cfg(test)]
mod workspaces;
