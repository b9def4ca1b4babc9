//! Archives written byte by byte: no file system has to be able to have what is in them, and no tool to be willing.

/// An archive that is being made. Everything in it belongs to 70000:3, has the mode 4751 and is as old as 1970.
#[derive(Default)]
pub(crate) struct Tar(Vec<u8>);

impl Tar {
    /// One more member, of a kind as headers have it.
    pub(crate) fn add(mut self, kind: u8, path: &str, link: &str, data: &[u8]) -> Self {
        self.0.extend(header(kind, path, link, data.len()));
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        self.add(b'0', path, "", text.as_bytes())
    }

    /// A file of so many bytes, of which it has the first.
    pub(crate) fn sparse(self, path: &str, len: u64, begin: &[u8]) -> Self {
        let records = [
            ("GNU.sparse.major", "1".to_owned()),
            ("GNU.sparse.minor", "0".into()),
            ("GNU.sparse.name", path.into()),
            ("GNU.sparse.realsize", len.to_string()),
        ];
        let mut data = format!("1\n0\n{}\n", begin.len()).into_bytes();
        data.resize(512, 0);
        data.extend(begin);
        self.pax(&records).add(b'0', "sparse", "", &data)
    }

    /// What is said of the member that follows.
    pub(crate) fn pax(self, records: &[(&str, String)]) -> Self {
        let record = |(key, value): &(&str, String)| {
            let rest = 3 + key.len() + value.len();
            // The length counts its own digits.
            let digits = (1..5).find(|digits| (rest + digits).to_string().len() == *digits).unwrap_or_default();
            let len = rest + digits;
            format!("{len} {key}={value}\n")
        };
        let text: String = records.iter().map(record).collect();
        self.add(b'x', "pax", "", text.as_bytes())
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// What stands before a member.
pub(crate) fn header(kind: u8, path: &str, link: &str, len: usize) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    for (at, text) in [(100, "0004751"), (108, "0210560"), (116, "0000003"), (136, "00000000000"), (257, "ustar\x0000")]
    {
        put(at, text);
    }
    put(124, &format!("{len:011o}"));
    put(157, link);
    put(329, "0000001");
    put(337, "0000003");
    block[156] = kind;
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
