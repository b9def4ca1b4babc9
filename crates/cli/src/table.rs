//! Columns that a person can read, and a script can split at blanks.

use std::time::{SystemTime, UNIX_EPOCH};

use types::GuestMemorySize;

/// A column's heading, and on which side its values are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    /// Text.
    Left(&'static str),
    /// Numbers.
    Right(&'static str),
}

impl Column {
    const fn heading(self) -> &'static str {
        match self {
            Self::Left(heading) | Self::Right(heading) => heading,
        }
    }
}

/// Heading and rows, each column as wide as its widest value.
pub(crate) fn table<const N: usize>(columns: [Column; N], rows: &[[String; N]]) -> String {
    let width = |index: usize| {
        let values = rows.iter().map(|row| row[index].chars().count());
        values.chain([columns[index].heading().len()]).max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |values: [&str; N]| {
        let cells = (0..N).map(|index| match columns[index] {
            Column::Left(_) => format!("{:<1$}", values[index], widths[index]),
            Column::Right(_) => format!("{:>1$}", values[index], widths[index]),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let heading = line(columns.map(Column::heading));
    let lines = rows.iter().map(|row| line(std::array::from_fn(|index| row[index].as_str())));
    std::iter::once(heading).chain(lines).collect::<Vec<_>>().join("\n")
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// How long ago, in the largest unit that says something.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Bytes, in the unit that keeps them short.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=10_239_999 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// A guest's memory, as it was asked for.
pub(crate) fn memory(length: u64) -> String {
    GuestMemorySize::try_from(length).map_or_else(|_| bytes(length), |size| size.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let columns = [Column::Left("ID"), Column::Right("PID"), Column::Left("TAG")];
        let rows = [["sb-1".into(), "7".into(), "pyagent".into()], ["sb-22".into(), "12345".into(), "é".into()]];
        let expected = "\
ID       PID  TAG
sb-1       7  pyagent
sb-22  12345  é";
        assert_eq!(table(columns, &rows), expected);
        assert_eq!(table([Column::Left("A")], &[]), "A");
    }

    #[test]
    fn ages_and_sizes_are_short() {
        assert_eq!([0, 119, 120, 7200, 172_800].map(age), ["0 s", "119 s", "2 min", "2 h", "2 d"]);
        assert_eq!([0, 9_999, 20_480, 536_870_912].map(bytes), ["0 B", "9999 B", "20 KiB", "512 MiB"]);
    }
}
