//! HTTP over a unix socket, for a library that knows TCP.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport, time::Duration,
};
use ureq::{Error, config::Config, http::Uri};

/// Connects to this socket, whatever the URL says.
#[derive(Debug)]
pub(crate) struct UnixConnector(pub(crate) PathBuf);

impl Connector for UnixConnector {
    type Out = UnixTransport;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Self::Out>, Error> {
        let stream = UnixStream::connect(&self.0)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(UnixTransport { stream, buffers }))
    }
}

/// No name is looked up.
#[derive(Debug)]
pub(crate) struct NoResolver;

impl Resolver for NoResolver {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(([127, 0, 0, 1], 0).into());
        Ok(addresses)
    }
}

pub(crate) struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl fmt::Debug for UnixTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnixTransport").field(&self.stream).finish()
    }
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.set_write_timeout(limit(timeout))?;
        let output = self.buffers.output();
        self.stream.write_all(&output[..amount]).map_err(|error| late(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.set_read_timeout(limit(timeout))?;
        let input = self.buffers.input_append_buf();
        let read = loop {
            match self.stream.read(input) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|error| late(error, timeout))?,
            }
        };
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    fn is_open(&mut self) -> bool {
        // One that has something to say between two answers is about to close.
        let quiet = |mut stream: &UnixStream| {
            stream.set_nonblocking(true).is_ok()
                && stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        quiet(&self.stream) && self.stream.set_nonblocking(false).is_ok()
    }
}

fn limit(timeout: NextTimeout) -> Option<std::time::Duration> {
    match timeout.after {
        Duration::NotHappening => None,
        Duration::Exact(exact) => Some(exact.max(std::time::Duration::from_millis(1))),
    }
}

fn late(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}
