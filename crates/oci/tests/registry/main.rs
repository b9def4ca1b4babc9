//! Images from a registry that others wrote.

#[cfg(test)]
mod images;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod real;
#[cfg(test)]
mod server;
