use super::*;
use crate::recipe::line::{MAX_LINE, ShellLineError};

fn warm(text: &str) -> Result<Warm, toml::de::Error> {
    toml::from_str(text)
}

#[test]
fn every_field_arrives() {
    let found = warm(
        "interpreter = \"python3\"\nmodules = [\"numpy\", \"os.path\"]\ncommand = \"redis-server &\"\n\
         start = \"serve\"\nready = \"redis-cli ping | grep -q PONG\"\ntimeout_secs = 90",
    )
    .unwrap();
    let WarmInterpreter { program, modules } = found.interpreter.unwrap();
    assert_eq!(program, Interpreter::Python3);
    assert_eq!(modules.as_slice().iter().map(ModuleName::as_str).collect::<Vec<_>>(), ["numpy", "os.path"]);
    assert_eq!((found.command.unwrap().as_str(), found.start.unwrap().argv()[2].as_str()), ("redis-server &", "serve"));
    assert_eq!(found.ready.unwrap(), Ready::Command("redis-cli ping | grep -q PONG".parse().unwrap()));
    assert_eq!(found.timeout.unwrap().duration(), Duration::from_secs(90));
    assert_eq!(warm("").unwrap(), Warm::default());
    let size: Size = toml::from_str("memory = \"2G\"\nvcpus = 4").unwrap();
    assert_eq!((size.memory.map(GuestMemorySize::mib), size.vcpus.map(VcpuCount::get)), (Some(2048), Some(4)));
    assert_eq!(toml::from_str::<Size>("").unwrap(), Size::default());
    let build: Build = toml::from_str("run = [\"a\", \"b\"]\negress = \"pypi.org:443\"\ntimeout_secs = 5").unwrap();
    assert_eq!((build.run.len(), build.egress.unwrap().to_string().as_str()), (2, "pypi.org:443"));
    let network: Network = toml::from_str("egress = \"none\"\nports = [5432, 80, 80]").unwrap();
    assert_eq!(network.egress, Some(Egress::None));
    assert_eq!(network.ports.iter().map(|port| port.get()).collect::<Vec<_>>(), [80, 5432]);
}

#[test]
fn every_way_to_be_ready_is_told_apart() {
    let ready = |text: &str| warm(&format!("start = \"serve\"\nready = {text}")).map(|warm| warm.ready.unwrap());
    let port = NonZeroU16::new(8080).unwrap();
    assert_eq!(ready("\"true\"").unwrap(), Ready::Command("true".parse().unwrap()));
    assert_eq!(ready("{ command = \"true\" }").unwrap(), Ready::Command("true".parse().unwrap()));
    assert_eq!(ready("{ tcp = 8080 }").unwrap(), Ready::Tcp(port));
    assert_eq!(ready("{ http = 8080 }").unwrap(), Ready::Http(port, "/".parse().unwrap()));
    assert_eq!(ready("{ http = 8080, path = \"/h?a\" }").unwrap(), Ready::Http(port, "/h?a".parse().unwrap()));
    assert_eq!(ready("{ line = \"is ready\" }").unwrap(), Ready::Line("is ready".parse().unwrap()));
    for (text, named) in [
        ("{}", "say one of command"),
        ("{ tcp = 1, line = \"x\" }", "say one of command"),
        ("{ tcp = 1, path = \"/\" }", "say one of command"),
        ("{ path = \"/\" }", "say one of command"),
        ("{ tcp = 0 }", "nonzero"),
        ("{ tcp = 65536 }", "65536"),
        ("{ http = 1, path = \"x\" }", "`x` is not a path of a server's"),
        ("{ http = 1, path = \"/a b\" }", "not a path of a server's"),
        ("{ line = \"\" }", "can be printed"),
        ("{ udp = 1 }", "udp"),
        ("7", "a command, or a table"),
        ("\"\"", "one line"),
    ] {
        let error = ready(text).unwrap_err().to_string();
        assert!(error.contains(named), "{named:?} is not in: {error}");
    }
    let error = warm("ready = { line = \"x\" }").unwrap_err().to_string();
    assert!(error.contains("nothing is started"), "{error}");
}

#[test]
fn what_cannot_be_meant_is_named() {
    let many = format!("interpreter = \"python3\"\nmodules = [{}]", "\"a\",".repeat(65));
    for (text, named) in [
        ("interpreter = \"perl\"", "perl"),
        ("modules = [\"numpy\"]", "no interpreter"),
        ("interpreter = \"python3\"\nmodules = [\"os; import sys\"]", "`os; import sys` is not a module"),
        ("interpreter = \"python3\"\nmodules = [\"@scope/x\"]", "python3 has no module `@scope/x`"),
        (&many, "65 modules"),
        ("command = \"\"", "one line"),
        ("command = \"  \"", "one line"),
        ("command = \"a\\nb\"", "one line"),
        ("start = \"a\\nb\"", "one line"),
        ("timeout_secs = 0", "1 to 86400"),
        ("timeout_secs = 86401", "1 to 86400"),
        ("modlues = []", "modlues"),
    ] {
        let error = warm(text).unwrap_err().to_string();
        assert!(error.contains(named), "{named:?} is not in: {error}");
    }
    assert_eq!("x".repeat(MAX_LINE + 1).parse::<ShellLine>(), Err(ShellLineError));
    for (text, named) in [
        ("memory = \"1M\"", "128 MiB"),
        ("memory = \"much\"", "`much` is not a size"),
        ("memory = 512", "string"),
        ("vcpus = 0", "1 to 32"),
        ("vcpus = -1", "-1"),
        ("cpus = 1", "cpus"),
    ] {
        let error = toml::from_str::<Size>(text).unwrap_err().to_string();
        assert!(error.contains(named), "{named:?} is not in: {error}");
    }
    let ports = format!("ports = [{}]", "1,".repeat(MAX_PORTS + 1));
    for (text, named) in
        [("egress = \"a!\"", "a!"), ("egress = \"\"", "egress policy"), (&ports, "65 ports"), ("port = 1", "port")]
    {
        let error = toml::from_str::<Network>(text).unwrap_err().to_string();
        assert!(error.contains(named), "{named:?} is not in: {error}");
    }
    for (text, named) in [("run = \"x\"", "sequence"), ("run = [\"\"]", "one line"), ("egress = \"::1\"", "IPv4")] {
        let error = toml::from_str::<Build>(text).unwrap_err().to_string();
        assert!(error.contains(named), "{named:?} is not in: {error}");
    }
}
