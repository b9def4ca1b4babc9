//! The schema and the reference are what the types say. `UPDATE=1 cargo test -p image schema` writes them anew.

use std::fmt::Write as _;

use serde_json::Value;

use super::*;

/// Between these the reference stands.
const MARKS: [&str; 2] = ["<!-- reference: generated, see CONTRIBUTING.md -->\n", "<!-- end of the reference -->\n"];

fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes")
}

fn generated() -> Value {
    let mut schema = serde_json::to_value(schemars::schema_for!(RecipeFile)).unwrap();
    tidy(&mut schema);
    schema
}

/// The file has to say this, and does after an update.
fn compare(path: &Path, text: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "{} is not up to date: UPDATE=1 cargo test -p image schema", path.display());
}

/// TOML has no null, and a description no lines.
fn tidy(schema: &mut serde_json::Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Array(kinds)) = fields.get("type")
                && let [kind, Value::String(null)] = &kinds[..]
                && null == "null"
            {
                let kind = kind.clone();
                fields.insert("type".into(), kind);
            }
            if let Some(Value::Array(ways)) = fields.get("anyOf") {
                let ways: Vec<_> = ways.iter().filter(|way| way["type"] != "null").cloned().collect();
                fields.insert("anyOf".into(), ways.into());
            }
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

#[test]
fn the_schema_is_what_the_types_say_and_holds_for_every_recipe() {
    let (recipes, schema) = (recipes(), generated());
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    compare(&recipes.join("recipe.schema.json"), &text);
    let schema = jsonschema::validator_for(&schema).unwrap();
    let value = |text: &str| toml::from_str::<serde_json::Value>(text).unwrap();
    for name in names_in(&recipes).unwrap() {
        let text = std::fs::read_to_string(recipes.join(&name).join(FILE_NAME)).unwrap();
        assert!(text.starts_with("#:schema ../recipe.schema.json\n"), "{name} does not say what it is");
        let errors: Vec<_> = schema.iter_errors(&value(&text)).map(|error| error.to_string()).collect();
        assert_eq!(errors, [""; 0], "{name}");
    }
    for (from, to) in [
        ("\"b1\"", "\"--purge\""),
        ("[base]", "[wram]\n[base]"),
        ("[base]", "[size]\nvcpus = 99\n[base]"),
        ("[base]", "[warm]\nready = { udp = 1 }\n[base]"),
        ("[base]", "[[copy]]\nfrom = \"x\"\nto = \"x\"\n[base]"),
        ("description", "describtion"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert!(!schema.is_valid(&value(&text)), "the schema takes {text}");
    }
}

#[test]
fn the_reference_in_the_schema_is_the_one_that_people_read() {
    let path = recipes().join("README.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = found.split_once(MARKS[0]).expect("it says where the reference begins");
    let (_, after) = rest.split_once(MARKS[1]).expect("it says where the reference ends");
    compare(&path, &format!("{before}{}{}{}{after}", MARKS[0], reference(&generated()), MARKS[1]));
}

/// A table of fields for each table of a recipe.
fn reference(schema: &Value) -> String {
    let mut text = String::new();
    let plain = |field: &&Value| field.get("$ref").is_none() && field["items"].get("$ref").is_none();
    let fields = schema["properties"].as_object().unwrap();
    let own: Vec<_> = fields.iter().filter(|(_, field)| plain(field)).collect();
    rows(&mut text, "", "One line for a person, and then tables.", &own, &schema["required"]);
    for (name, field) in fields.iter().filter(|(_, field)| !plain(field)) {
        let (reference, heading) = match field["items"]["$ref"].as_str() {
            Some(reference) => (reference, format!("`[[{name}]]`")),
            None => (field["$ref"].as_str().unwrap(), format!("`[{name}]`")),
        };
        let table = &schema["$defs"][reference.rsplit('/').next().unwrap()];
        let fields: Vec<_> = table["properties"].as_object().unwrap().iter().collect();
        rows(&mut text, &heading, field["description"].as_str().unwrap(), &fields, &table["required"]);
    }
    text
}

fn rows(text: &mut String, heading: &str, about: &str, fields: &[(&String, &Value)], required: &Value) {
    let title = if heading.is_empty() { String::new() } else { format!("### {heading}\n\n") };
    write!(text, "{title}{about}\n\n| field | is | what it says |\n|---|---|---|\n").unwrap();
    for (name, field) in fields {
        let must = required.as_array().is_some_and(|all| all.iter().any(|one| one == name.as_str()));
        let must = if must { " (required)" } else { "" };
        let about = field["description"].as_str().unwrap().replace('|', "\\|");
        writeln!(text, "| `{name}` | {}{must} | {about} |", kind(field)).unwrap();
    }
    text.push('\n');
}

/// What need not be there is one of several ways itself.
fn has_list(way: &Value) -> bool {
    way["type"] == "array" || way["anyOf"].as_array().is_some_and(|ways| ways.iter().any(has_list))
}

fn kind(field: &Value) -> String {
    if let Some(words) = field["enum"].as_array() {
        let words: Vec<_> = words.iter().filter_map(Value::as_str).map(|word| format!("`\"{word}\"`")).collect();
        return words.join(" or ");
    }
    if let Some(ways) = field["anyOf"].as_array() {
        return if ways.iter().any(has_list) { "text or list of texts" } else { "text or table" }.into();
    }
    match field["type"].as_str() {
        Some("string") => "text".into(),
        Some("integer") => "number".into(),
        Some("array") => format!("list of {}", if field["items"]["type"] == "integer" { "numbers" } else { "texts" }),
        Some("object") => "table of texts".into(),
        other => panic!("no word for {other:?}: {field}"),
    }
}
