//! The packages of a recipe: words that end up on command lines.

use std::str::FromStr;

use super::word::checked_text;

/// Longer than any package in the archive.
const MAX_PACKAGE: usize = 128;
const MAX_SUITE: usize = 32;
/// The longest name that npm takes, and longer than any of PyPI's; and a version beside it.
const MAX_NAME: usize = 214;
const MAX_VERSION: usize = 64;

/// Not the name of a Debian package.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a Debian package; use 2 to 128 of a-z, 0-9, `+`, `-` and `.`, beginning with a-z or 0-9")]
pub struct PackageNameError {
    text: String,
}

checked_text! {
    /// The name of a Debian package, as Debian Policy 5.6.1 has it: never an option, a path, a version or a task.
    ///
    /// apt takes a trailing `+` or `-` as an order to install or remove when no package has that whole name. Names that
    /// end in `+` exist (`g++`) and mean the same either way; none ends in `-`, so that is refused.
    PackageName, PackageNameError, r"^[a-z0-9][a-z0-9+.-]{0,126}[a-z0-9+.]$"
}

impl FromStr for PackageName {
    type Err = PackageNameError;

    fn from_str(text: &str) -> Result<Self, PackageNameError> {
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let fits = text.bytes().all(|b| lower(b) || b"+-.".contains(&b));
        let ends = text.bytes().next().is_some_and(lower) && !text.ends_with('-');
        if fits && ends && (2..=MAX_PACKAGE).contains(&text.len()) {
            Ok(Self(text.into()))
        } else {
            Err(PackageNameError { text: text.into() })
        }
    }
}

/// Not the name of a Debian release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a Debian release; write its name, such as bookworm")]
pub struct SuiteError {
    text: String,
}

checked_text! {
    /// The name of a Debian release: lower-case letters only, as all of them are.
    Suite, SuiteError, r"^[a-z]{1,32}$"
}

impl FromStr for Suite {
    type Err = SuiteError;

    fn from_str(text: &str) -> Result<Self, SuiteError> {
        if (1..=MAX_SUITE).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase()) {
            Ok(Self(text.into()))
        } else {
            Err(SuiteError { text: text.into() })
        }
    }
}

/// Not a package of PyPI in one version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a package of PyPI in one version; write name==version, such as ipykernel==6.29.5")]
pub struct PipPackageError {
    text: String,
}

checked_text! {
    /// A package of PyPI in one version: `name==version`, never an option, a path, an address or a range.
    PipPackage, PipPackageError, r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?==[0-9][A-Za-z0-9.+!-]*$"
}

impl FromStr for PipPackage {
    type Err = PipPackageError;

    fn from_str(text: &str) -> Result<Self, PipPackageError> {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let is_name = |name: &str| {
            let ends = [name.bytes().next(), name.bytes().last()];
            name.len() <= MAX_NAME
                && name.bytes().all(inner)
                && ends.iter().all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()))
        };
        match text.split_once("==") {
            Some((name, version)) if is_name(name) && is_version(version) => Ok(Self(text.into())),
            _ => Err(PipPackageError { text: text.into() }),
        }
    }
}

/// Not a package of npm in one version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a package of npm in one version; write name@version, such as playwright-core@1.49.1")]
pub struct NpmPackageError {
    text: String,
}

checked_text! {
    /// A package of npm in one version: `name@version` or `@scope/name@version`, never an option, a path, an address, a
    /// tag or a range.
    NpmPackage, NpmPackageError, r"^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*@[0-9]+\.[0-9]+\.[0-9]+([+-][A-Za-z0-9.+-]*)?$"
}

impl FromStr for NpmPackage {
    type Err = NpmPackageError;

    fn from_str(text: &str) -> Result<Self, NpmPackageError> {
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let is_word = |word: &str| {
            word.bytes().next().is_some_and(lower) && word.bytes().all(|b| lower(b) || b"._-".contains(&b))
        };
        let is_name = |name: &str| {
            name.len() <= MAX_NAME
                && match name.strip_prefix('@').map(|scoped| scoped.split_once('/')) {
                    Some(scoped) => scoped.is_some_and(|(scope, name)| is_word(scope) && is_word(name)),
                    None => is_word(name),
                }
        };
        // Three numbers are a version; fewer are a range.
        let exact =
            |version: &str| is_version(version) && version.split(['-', '+']).next().is_some_and(is_three_numbers);
        match text.rsplit_once('@') {
            Some((name, version)) if is_name(name) && exact(version) => Ok(Self(text.into())),
            _ => Err(NpmPackageError { text: text.into() }),
        }
    }
}

fn is_three_numbers(text: &str) -> bool {
    let parts: Vec<_> = text.split('.').collect();
    parts.len() == 3 && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// One version and no pattern; begins with a digit, so it is no option either.
fn is_version(text: &str) -> bool {
    let fits = text.bytes().all(|b| b.is_ascii_alphanumeric() || b".+!-".contains(&b));
    fits && text.len() <= MAX_VERSION && text.bytes().next().is_some_and(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn real_names_pass() {
        for good in ["python3", "g++", "libstdc++6", "python3.11", "ca-certificates", "0ad", "2to3"] {
            assert_eq!(good.parse::<PackageName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn what_apt_reads_otherwise_is_refused() {
        for bad in [
            "",
            "a",
            "-y",
            "--purge",
            "./x.deb",
            "/etc/x",
            "a/bookworm",
            "a=1.0",
            "a:i386",
            "a,b",
            "a b",
            "Python3",
            "a\n",
            "~nfoo",
            "?essential",
            "python3-",
            "tasksel^",
            "foo*",
            "a\0b",
            "ü-x",
            &"x".repeat(129),
        ] {
            assert!(bad.parse::<PackageName>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn suites_are_plain_words() {
        for good in ["bookworm", "trixie", "sid"] {
            good.parse::<Suite>().unwrap();
        }
        for bad in ["", "-x", "book worm", "../x", "bookworm/updates", "Bookworm", "b\n", &"x".repeat(33)] {
            assert!(bad.parse::<Suite>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn packages_of_indexes_have_one_version() {
        for good in ["ipykernel==6.29.5", "zope.interface==6.0", "Jinja2==3.1.4rc1", "x==1!2.0+local.1"] {
            assert_eq!(good.parse::<PipPackage>().unwrap().as_str(), good);
        }
        for good in ["playwright-core@1.49.1", "@types/node@22.0.0", "a@1.0.0-beta.1", "lodash.get@4.4.2"] {
            assert_eq!(good.parse::<NpmPackage>().unwrap().as_str(), good);
        }
        for bad in
            ["", "x", "x>=1", "x==", "==1", "-r==1", "x==1.*", "x == 1", "x==1; os", "x[a]==1", "./x==1", "x==-1"]
        {
            assert!(bad.parse::<PipPackage>().is_err(), "{bad:?} was accepted");
        }
        for bad in [
            "",
            "x",
            "x@",
            "@1.0.0",
            "x@latest",
            "x@^1.0.0",
            "x@1.0",
            "x@1.x.0",
            "--g@1.0.0",
            "../x@1.0.0",
            "@a/../b@1.0.0",
        ] {
            assert!(bad.parse::<NpmPackage>().is_err(), "{bad:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn whatever_passes_is_one_harmless_word(text in "\\PC{0,12}|[-+.a-z0-9]{0,12}") {
            if let Ok(name) = text.parse::<PackageName>() {
                let name = name.as_str();
                prop_assert!(!name.starts_with(['-', '.', '+']) && !name.ends_with('-'));
                let special = |c: char| c.is_whitespace() || "/\\,=:;'\"$`*?~^|&<>(){}[]".contains(c);
                prop_assert!(!name.contains(special), "{} has a special character", name);
                prop_assert_eq!(name, text);
            }
        }

        #[test]
        fn what_indexes_are_asked_for_is_no_option_and_no_path(text in "[-@a-z./]{1,9}(==|@)[0-9a-z.!+*-]{1,9}") {
            let pip = text.parse::<PipPackage>().map(|package| package.to_string());
            let npm = text.parse::<NpmPackage>().map(|package| package.to_string());
            for word in pip.into_iter().chain(npm) {
                prop_assert!(!word.starts_with(['-', '.', '/']) && !word.contains('*'), "{}", word);
                prop_assert!(word.starts_with('@') || !word.contains('/'), "{}", word);
                prop_assert!(!word.contains("/.") && !word.contains("./"), "{}", word);
            }
        }

        #[test]
        fn every_policy_name_passes(text in "[a-z0-9][-+.a-z0-9]{0,60}[+.a-z0-9]") {
            prop_assert!(text.parse::<PackageName>().is_ok());
        }
    }
}
