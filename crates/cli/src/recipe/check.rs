//! `forkd recipe check`: is a recipe right, and is all there that it copies.

use std::process::ExitCode;

use clap::Args;
use image::Recipe;
use serde_json::{Value, json};

use super::summary;
use crate::errors::chain;
use crate::output;

/// Checks recipes: every field, and the files that are copied
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  forkd recipe check                     recipe.toml in this directory
  forkd recipe check mine/recipe.toml python-numpy

Exit code: 0 when all of them are right, 1 when one is not; what is wrong is said with its line.")]
pub(super) struct CheckArgs {
    /// Recipes: names, or paths of a recipe.toml or its directory [default: ./recipe.toml]
    #[arg(value_name = "RECIPE")]
    recipes: Vec<String>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let here = [String::from("./recipe.toml")];
    let named = if args.recipes.is_empty() { &here[..] } else { &args.recipes[..] };
    let checked: Vec<_> = named.iter().map(|name| (name, examine(name))).collect();
    if args.json {
        let rows = checked.iter().map(|(name, result)| match result {
            Ok(recipe) => json!({ "recipe": name, "valid": true, "says": summary::as_json(recipe) }),
            Err(error) => json!({ "recipe": name, "valid": false, "error": chain(error) }),
        });
        output::line(&Value::Array(rows.collect()).to_string())?;
    } else {
        for (name, result) in &checked {
            match result {
                Ok(recipe) => output::line(&told(recipe))?,
                Err(error) => eprintln!("✗ {name}\n{}", chain(error)),
            }
        }
    }
    Ok(if checked.iter().all(|(_, result)| result.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(name: &str) -> anyhow::Result<Recipe> {
    let recipe = Recipe::find(name)?;
    recipe.check_files()?;
    Ok(recipe)
}

fn told(recipe: &Recipe) -> String {
    let lines = summary::lines(recipe).into_iter().map(|(name, text)| format!("  {name:<12}{text}"));
    let first = format!("✓ {}: {}", recipe.name, recipe.description);
    std::iter::once(first).chain(lines).collect::<Vec<_>>().join("\n")
}
