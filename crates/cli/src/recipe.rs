//! `forkd recipe`: recipes are begun, looked at, built and listed.

mod build;
mod check;
mod init;
mod list;
mod summary;

use std::process::ExitCode;

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  forkd recipe list                            what comes with forkd
  forkd recipe init mine                       mine/recipe.toml, to begin with
  forkd recipe init mine --from python-numpy   the same as a copy of one that works
  forkd recipe check mine/recipe.toml          is it right, and are its files there
  forkd recipe build mine/recipe.toml          its disk; its steps are run in a VM
  forkd snapshot --recipe mine/recipe.toml --tag mine";

/// Begins, checks, builds and lists recipes
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RecipeArgs {
    #[command(subcommand)]
    verb: RecipeVerb,
}

#[derive(Debug, Subcommand)]
enum RecipeVerb {
    Init(init::InitArgs),
    Check(check::CheckArgs),
    Build(build::BuildArgs),
    List(list::ListArgs),
    /// Prints the JSON Schema of recipe.toml, for editors
    Schema,
}

pub(crate) fn recipe(args: &RecipeArgs) -> anyhow::Result<ExitCode> {
    match &args.verb {
        RecipeVerb::Init(args) => init::init(args),
        RecipeVerb::Check(args) => check::check(args),
        RecipeVerb::Build(args) => build::build(args),
        RecipeVerb::List(args) => list::list(args),
        RecipeVerb::Schema => crate::output::line(image::SCHEMA.trim_end()).map(|()| ExitCode::SUCCESS),
    }
}
