//! Whom an event is from, as the one number that an epoll keeps for each.

use rustix::event::epoll::EventData;

/// Whom an event is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The template or a child, on the connection by which these children were asked for.
    Batch(u32),
    /// A child's process is over.
    Child(u32),
    /// The template's process is over.
    Template,
    /// Somebody has finished something.
    Bell,
    /// It is called off.
    Cancel,
}

impl Source {
    pub(super) fn to_data(self) -> EventData {
        let (kind, index) = match self {
            Self::Batch(index) => (0, index),
            Self::Child(index) => (1, index),
            Self::Template => (2, 0),
            Self::Bell => (3, 0),
            Self::Cancel => (4, 0),
        };
        EventData::new_u64((kind << 32) | u64::from(index))
    }

    pub(super) fn from_data(data: EventData) -> Self {
        let [a, b, c, d, kind, ..] = data.u64().to_le_bytes();
        let index = u32::from_le_bytes([a, b, c, d]);
        match kind {
            0 => Self::Batch(index),
            1 => Self::Child(index),
            2 => Self::Template,
            3 => Self::Bell,
            _ => Self::Cancel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_the_epoll() {
        for source in [Source::Batch(7), Source::Child(u32::MAX), Source::Template, Source::Bell, Source::Cancel] {
            assert_eq!(Source::from_data(source.to_data()), source);
        }
    }
}
