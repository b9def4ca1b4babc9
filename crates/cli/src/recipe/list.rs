//! `forkd recipe list`: the recipes that can be named.

use std::process::ExitCode;

use clap::Args;
use image::Recipe;
use serde_json::Value;

use super::summary;
use crate::output;
use crate::table::{Column, table};

/// Lists the recipes that can be named: those that come with forkd, or those in the directory FORKD_RECIPES
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  forkd recipe list\n  FORKD_RECIPES=./recipes forkd recipe list --json")]
pub(super) struct ListArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let recipes = Recipe::known()?;
    if args.json {
        output::line(&Value::Array(recipes.iter().map(summary::as_json).collect()).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [Column::Left("NAME"), Column::Left("BASED ON"), Column::Left("WARM"), Column::Left("DESCRIPTION")];
    let row = |recipe: &Recipe| {
        [recipe.name.to_string(), summary::base(recipe), summary::warm(recipe), recipe.description.clone()]
    };
    output::line(&table(columns, &recipes.iter().map(row).collect::<Vec<_>>()))?;
    Ok(ExitCode::SUCCESS)
}
