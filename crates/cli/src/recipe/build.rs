//! `forkd recipe build`: the disk of a recipe, all its steps run.

use std::process::ExitCode;

use clap::Args;
use image::{Recipe, build_image};
use serde_json::json;
use types::Dirs;

use crate::parts::{Built, Completed, Parts};
use crate::run::GuestArgs;
use crate::{output, progress};

/// Builds the disk of a recipe and keeps it, so that snapshots of it begin at once
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  forkd recipe build python-numpy
  forkd recipe build mine/recipe.toml --json

What was built is found again for as long as the recipe, what it copies and the image it is based on are the same. Where
VMs run in the emulated host, a disk whose steps were run is there, and its path is one inside.")]
pub(super) struct BuildArgs {
    /// The recipe: a name, or the path of a recipe.toml or its directory
    #[arg(value_name = "RECIPE")]
    recipe: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Shows no progress
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn build(args: &BuildArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(args.quiet);
    let recipe = Recipe::find(&args.recipe)?;
    let (name, steps) = (recipe.name.clone(), recipe.steps().len());
    let image = build_image(&recipe, &dirs, &*progress)?;
    let digest = image.digest;
    let completed = if steps == 0 {
        Completed::Here(image.path)
    } else {
        let guest = GuestArgs::of_recipe(name.to_string());
        let parts = Parts::of(Built { recipe, image: image.path }, &guest, &dirs, &*progress)?;
        parts.completed(&dirs, &*progress)?
    };
    drop(progress);
    let (place, path) = match completed {
        Completed::Here(path) => ("local", path.display().to_string()),
        Completed::Inside(path) => ("machine", path),
    };
    if args.json {
        let value = json!({ "recipe": name, "digest": digest, "steps": steps, "place": place, "path": path });
        output::line(&value.to_string())?;
    } else {
        if place == "machine" {
            eprintln!("forkd: {name} is built, in the emulated host");
        }
        output::line(&path)?;
    }
    Ok(ExitCode::SUCCESS)
}
