//! What a recipe is, in a few words each.

use image::{Bottom, Ready, Recipe, Start};
use oci::DiskSize;
use serde_json::{Value, json};

/// What it is based on.
pub(super) fn base(recipe: &Recipe) -> String {
    match &recipe.base.bottom {
        Bottom::Debian(suite) => format!("debian {suite}"),
        Bottom::Image { name, .. } => name.to_string(),
    }
}

/// What is warm in it.
pub(super) fn warm(recipe: &Recipe) -> String {
    let warm = &recipe.warm;
    let interpreter = warm.interpreter.as_ref().map(|warm| {
        let modules: Vec<_> = warm.modules.as_slice().iter().map(ToString::to_string).collect();
        if modules.is_empty() {
            warm.program.to_string()
        } else {
            format!("{} with {}", warm.program, modules.join(", "))
        }
    });
    let lines = [
        interpreter,
        warm.command.as_ref().map(|_| "a command".into()),
        warm.start.as_ref().map(|_| "a server".into()),
    ];
    let words: Vec<_> = lines.into_iter().flatten().collect();
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

/// How it is known to be ready.
fn ready(ready: &Ready) -> String {
    match ready {
        Ready::Command(line) => format!("`{line}` succeeds"),
        Ready::Tcp(port) => format!("somebody listens on port {port}"),
        Ready::Http(port, path) => format!("port {port} answers {path} with 200"),
        Ready::Line(text) => format!("a line has `{text}` in it"),
    }
}

/// As a recipe has it.
fn start(start: &Start) -> Value {
    match start {
        Start::Line(line) => json!(line.as_str()),
        Start::Program(_) => json!(start.argv()),
    }
}

/// Everything, one line each.
pub(super) fn lines(recipe: &Recipe) -> Vec<(&'static str, String)> {
    let count = |what: &str, count: usize| (count > 0).then(|| format!("{count} {what}"));
    let packages = [
        count("of Debian", recipe.base.packages.len()),
        count("of PyPI", recipe.base.pip.len()),
        count("of npm", recipe.base.npm.len()),
    ];
    let packages: Vec<_> = packages.into_iter().flatten().collect();
    let mut lines = vec![("based on", base(recipe))];
    let mut line = |name, text: String| lines.extend((!text.is_empty()).then_some((name, text)));
    line("packages", packages.join(", "));
    line(
        "copies",
        recipe.copy.iter().map(|step| format!("{} to {}", step.from, step.to)).collect::<Vec<_>>().join(", "),
    );
    line("runs", count("steps in a VM", recipe.steps().len()).unwrap_or_default());
    line("warm", warm(recipe));
    line("ready when", recipe.warm.ready.as_ref().map(ready).unwrap_or_default());
    line("listens on", recipe.network.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    line("egress", recipe.network.egress.as_ref().map(ToString::to_string).unwrap_or_default());
    lines
}

/// The same for programs.
pub(super) fn as_json(recipe: &Recipe) -> Value {
    let warm = &recipe.warm;
    let interpreter = warm.interpreter.as_ref();
    let disk = match recipe.disk.0 {
        DiskSize::Bytes(bytes) => json!({ "size_bytes": bytes }),
        DiskSize::Free(bytes) => json!({ "free_bytes": bytes }),
    };
    let texts = |texts: &[String]| json!(texts);
    json!({
        "name": recipe.name,
        "description": recipe.description,
        "base": base(recipe),
        "packages": texts(&recipe.base.packages.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "pip": texts(&recipe.base.pip.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "npm": texts(&recipe.base.npm.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "copy": recipe.copy.iter().map(|step| json!({ "from": step.from.as_str(), "to": step.to.as_str() })).collect::<Vec<_>>(),
        "run": recipe.steps(),
        "interpreter": interpreter.map(|warm| warm.program.to_string()),
        "modules": interpreter.map(|warm| warm.modules.as_slice().iter().map(ToString::to_string).collect::<Vec<_>>()),
        "command": warm.command.as_ref().map(ToString::to_string),
        "start": warm.start.as_ref().map(start),
        "ready": warm.ready.as_ref().map(ready),
        "ports": recipe.network.ports.iter().map(|port| port.get()).collect::<Vec<_>>(),
        "egress": recipe.network.egress.as_ref().map(ToString::to_string),
        "disk": disk,
        "memory_mib": recipe.size.memory.map(types::GuestMemorySize::mib),
        "vcpus": recipe.size.vcpus.map(types::VcpuCount::get),
    })
}

#[cfg(test)]
mod tests {
    use image::Beside;

    use super::*;

    #[test]
    fn a_recipe_is_told_in_a_few_words() {
        let text = "description = \"d\"\n[base]\nimage = \"python:3.12\"\npackages = [\"jq\"]\npip = [\"x==1\"]\n\
                    [[copy]]\nfrom = \"a\"\nto = \"/a\"\n[build]\nrun = [\"b\"]\n[warm]\ninterpreter = \"python3\"\n\
                    modules = [\"os\"]\nstart = \"serve\"\nready = { tcp = 80 }\n[network]\nports = [80]\n";
        let recipe = Recipe::parse("r".parse().unwrap(), text, Beside::Directory("/".into())).unwrap();
        let said: Vec<_> = lines(&recipe).into_iter().map(|(name, text)| format!("{name}: {text}")).collect();
        assert_eq!(
            said,
            [
                "based on: python:3.12",
                "packages: 1 of Debian, 1 of PyPI",
                "copies: a to /a",
                "runs: 2 steps in a VM",
                "warm: python3 with os, a server",
                "ready when: somebody listens on port 80",
                "listens on: 80",
            ]
        );
        let value = as_json(&recipe);
        assert_eq!((value["ports"][0].as_u64(), value["run"].as_array().map(Vec::len)), (Some(80), Some(2)));
        assert_eq!(value["disk"]["free_bytes"], 2u64 << 30);
    }
}
