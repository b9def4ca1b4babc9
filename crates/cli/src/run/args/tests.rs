use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    run: RunArgs,
}

fn parse(words: &[&str]) -> Result<RunArgs, clap::Error> {
    Line::try_parse_from(std::iter::once("run").chain(words.iter().copied())).map(|line| line.run)
}

fn refusal(words: &[&str]) -> String {
    let error = parse(words).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[test]
fn what_comes_after_the_command_is_the_commands() {
    let args = parse(&["--vcpus", "4", "--", "sh", "-c", "--vcpus", "--"]).unwrap();
    assert_eq!((args.guest.vcpus.map(VcpuCount::get), args.guest.recipe), (Some(4), None));
    assert_eq!(args.command, ["sh", "-c", "--vcpus", "--"]);
    assert_eq!(parse(&["echo", "-n", "hi"]).unwrap().command, ["echo", "-n", "hi"]);
}

#[test]
fn nonsense_is_refused_in_words() {
    assert!(refusal(&["--vcpus", "0", "true"]).contains("1 to 32 vCPUs; `0`"));
    assert!(refusal(&["--vcpus", "1000", "true"]).contains("`1000`"));
    assert!(refusal(&["--memory", "1M", "true"]).contains("between 128 MiB and 1024 GiB"));
    assert!(refusal(&["--memory", "lots", "true"]).contains("512M or 4GiB"));
    assert!(refusal(&["--env", "=x", "true"]).contains("NAME=VALUE"));
    assert!(refusal(&["--timeout", "0", "true"]).contains("seconds"));
    for decided in [["--recipe", "x"], ["--vcpus", "2"], ["--memory", "1G"], ["--boot-timeout", "9"]] {
        let words = [&["--tag", "t"], &decided[..], &["true"]].concat();
        assert!(refusal(&words).contains("cannot be used with"), "{words:?}");
    }
    assert!(refusal(&["--tag", "../t", "true"]).contains("not a tag"));
    assert!(refusal(&[]).contains("COMMAND"));
}

#[test]
fn words_that_are_not_utf_8_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let words = [std::ffi::OsStr::new("run"), std::ffi::OsStr::from_bytes(b"\xff")];
    let error = Line::try_parse_from(words).unwrap_err();
    assert!(error.to_string().contains("UTF-8"), "{error}");
}

#[test]
fn a_request_says_all_that_was_asked_for() {
    let args =
        parse(&["-e", "A=1=2", "--user", "nobody", "--cwd", "/tmp", "--timeout", "1.5", "--", "id", "-u"]).unwrap();
    let request = args.request(Stdio::Pipes);
    assert_eq!(request.argv, ["id", "-u"]);
    assert_eq!(request.env.get("A").map(String::as_str), Some("1=2"));
    assert_eq!((request.user.as_deref(), request.cwd.as_deref()), (Some("nobody"), Some("/tmp")));
    assert_eq!((request.timeout_ms, request.stdio), (Some(1500), Stdio::Pipes));
}

#[test]
fn the_forkd_inside_is_asked_for_the_same() {
    let words = [
        "--net",
        "--vcpus",
        "3",
        "--memory",
        "2G",
        "--boot-timeout",
        "7.5",
        "--append",
        "loglevel=7 nosmp",
        "-e",
        "A=b c",
        "-e",
        "B=",
        "--user",
        "u",
        "--cwd",
        "/x y",
        "--timeout",
        "0.25",
        "-t",
        "--",
        "--odd",
        "it's",
        "",
    ];
    let outside = parse(&words).unwrap();
    let parts = InsideParts {
        image: "/i".into(),
        kernel: "/k".into(),
        initramfs: "/r".into(),
        vcpus: "3".parse().unwrap(),
        memory: "2G".parse().unwrap(),
    };
    let inside = outside.inside(&parts, Some("/tmp/t"));
    let inside: Vec<&str> = inside.iter().map(String::as_str).collect();
    assert_eq!(inside[0], "run");
    let inside = parse(&inside[1..]).unwrap();
    assert_eq!(inside.request(Stdio::Output), outside.request(Stdio::Output));
    let essence = |args: &RunArgs| {
        let guest = &args.guest;
        (guest.vcpus, guest.memory, args.net, guest.boot_timeout, guest.append.clone())
    };
    assert_eq!(essence(&inside), essence(&outside));
    assert_eq!(inside.guest.image(), Some(Image::Disk("/i".into())));
    assert_eq!(inside.timings, Some("/tmp/t".into()));
    assert!(inside.process.tty && inside.quiet);
}

#[test]
fn the_daemon_is_asked_for_the_same() {
    let args = parse(&["--tag", "t", "-e", "A=1=2", "--user", "u", "--timeout", "1.5", "--", "id"]).unwrap();
    let asked = args.asked(Stdio::Pipes);
    assert_eq!((asked.args, asked.timeout_secs, asked.user.as_deref()), (vec!["id".into()], Some(1.5), Some("u")));
    assert!(asked.env["A"] == "1=2" && asked.open_stdin && asked.tty.is_none());
    let tty = args.asked(Stdio::Tty(TtySize { rows: 24, cols: 80 }));
    assert_eq!(tty.tty, Some(api::TtySize { rows: 24, cols: 80 }));
    assert!(!args.asked(Stdio::Output).open_stdin);
}

#[test]
fn an_image_is_a_disk_or_becomes_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("debian");
    std::fs::write(&file, "").unwrap();
    let meant = |text: &str| parse(&["--image", text, "true"]).unwrap().guest.image().unwrap();
    for disk in [file.to_str().unwrap(), "./none", "../none", "/none", "python.ext4", "a/disk.img"] {
        assert_eq!(meant(disk), Image::Disk(disk.into()));
    }
    for source in ["python:3.12-slim", "me/app@sha256:00", "oci:dir:name", "docker-archive:app.tar", "./my/recipe.toml"]
    {
        assert_eq!(meant(source), Image::Source(source.into()));
    }
    assert_eq!(parse(&["--rootfs", "x.ext4", "true"]).unwrap().guest.image.as_deref(), Some("x.ext4"));
    assert!(refusal(&["--extra", "jq", "true"]).contains("--image"));
    let memory = parse(&["--mem-size-mib", "1024", "true"]).unwrap().guest.memory;
    assert_eq!(memory.map(GuestMemorySize::mib), Some(1024));
}
