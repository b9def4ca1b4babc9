//! Server-sent events, one after the other.

use std::io::{self, BufRead, BufReader, Read};

use crate::error::ClientError;
use crate::requests::Reader;

/// More than any line of an honest daemon has.
const MAX_LINE: u64 = 16 << 20;

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub name: String,
    /// What it is about; JSON.
    pub data: String,
}

/// All of them, to the end of the stream.
#[derive(Debug)]
pub struct Events<R = Reader>(BufReader<R>);

impl<R: Read> Events<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self(BufReader::new(stream))
    }

    /// The next line without its end; `None` at the end of the stream.
    fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        if (&mut self.0).take(MAX_LINE).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if line.pop() != Some('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(line.trim_end_matches('\r').to_owned()))
    }

    fn event(&mut self) -> io::Result<Option<Event>> {
        let mut event = Event::default();
        while let Some(line) = self.line()? {
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => event.name = value.into(),
                "data" if event.data.is_empty() => event.data = value.into(),
                "data" => event.data.extend(["\n", value]),
                _ => {}
            }
            // An empty line ends an event, and a comment that keeps the line alive is none.
            if line.is_empty() && event != Event::default() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

impl<R: Read> Iterator for Events<R> {
    type Item = Result<Event, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.event().map_err(ClientError::from).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_from_each_other() {
        let stream = ": hello\n\nid: 1\nevent: stdout\ndata: {\"a\":1}\n\ndata: x\r\ndata: y\r\n\r\nevent: last";
        let mut events = Events::new(stream.as_bytes());
        let mut next = || events.next().map(Result::unwrap).map(|event| (event.name, event.data));
        assert_eq!(next(), Some(("stdout".into(), "{\"a\":1}".into())));
        assert_eq!(next(), Some((String::new(), "x\ny".into())));
        assert!(matches!(events.next(), Some(Err(ClientError::Broken { .. }))));
    }
}
