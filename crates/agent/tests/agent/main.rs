//! The whole protocol against a real agent process, through the client the engine uses.

#[cfg(test)]
mod dial;
#[cfg(test)]
mod eval;
#[cfg(test)]
mod exec;
#[cfg(test)]
mod files;
#[cfg(test)]
mod lines;
#[cfg(test)]
mod node;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod renew;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod support;
