//! The recipes that come with forkd, as their users have them: each is built, snapshotted and forked by the user's own
//! programs, its warmth is proven by `tests/recipes`, and its example says what its README says.
//!
//! Not part of a plain run: `make recipes` runs all of them, and `make long` some. While one is tried, the images of the next
//! are built.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use image::{Recipe, build_image};
use types::Dirs;
use types::progress::Silent;

use crate::Test;
use crate::clients::{Served, TOKEN, directory, pytest, venvs};
use crate::host::Host;

const PYTHON: Test = ("recipes::python_numpy", |host| try_recipe(host, "python-numpy"));
const NODE: Test = ("recipes::nodejs", |host| try_recipe(host, "nodejs"));
const POSTGRES: Test = ("recipes::postgres_fixture", |host| try_recipe(host, "postgres-fixture"));
const JUPYTER: Test = ("recipes::jupyter_kernel", |host| try_recipe(host, "jupyter-kernel"));
const AGENT: Test = ("recipes::coding_agent", |host| try_recipe(host, "coding-agent"));
const BROWSER: Test = ("recipes::playwright_browser", |host| try_recipe(host, "playwright-browser"));

/// Their tests, in the order in which their images are built: the smallest first, so that nobody waits for long.
pub(crate) const ALL: &[Test] = &[PYTHON, NODE, POSTGRES, JUPYTER, AGENT, BROWSER];

/// The quickest that has an interpreter of which no other test knows.
pub(crate) const SOME: &[Test] = &[NODE];

/// What is built by somebody else meanwhile.
static IMAGES: Images = Images { done: Mutex::new(Vec::new()), news: Condvar::new() };
/// One daemon for all of them.
static DAEMON: Mutex<Option<Served>> = Mutex::new(None);

struct Images {
    /// Which recipe's image is there, or why it is not.
    done: Mutex<Vec<(&'static str, Result<(), String>)>>,
    news: Condvar,
}

/// The recipe that a test is of.
fn recipe_of(test: &str) -> Option<String> {
    Some(test.strip_prefix("recipes::")?.replace('_', "-"))
}

/// Begins to build the images of the recipes that are asked for, one after the other.
pub(crate) fn build_images(dirs: &Dirs, recipes: &[Test], asked: impl Fn(&str) -> bool) {
    let wanted: Vec<&'static str> = recipes.iter().map(|(name, _)| *name).filter(|name| asked(name)).collect();
    let dirs = dirs.clone();
    thread::spawn(move || {
        for name in wanted {
            let built = recipe_of(name).context("a recipe").and_then(|recipe| {
                build_image(&Recipe::find(&recipe)?, &dirs, &Silent)?;
                Ok(())
            });
            let mut done = IMAGES.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((name, built.map_err(|error| format!("{error:#}"))));
            IMAGES.news.notify_all();
        }
    });
}

/// Ends the daemon, if there is one.
pub(crate) fn tear_down() {
    drop(DAEMON.lock().unwrap_or_else(PoisonError::into_inner).take());
}

fn wait_for_image(recipe: &str) -> Result<()> {
    let done = IMAGES.done.lock().unwrap_or_else(PoisonError::into_inner);
    let of_it = |(name, _): &&(&str, _)| recipe_of(name).as_deref() == Some(recipe);
    let done = IMAGES.news.wait_while(done, |done| !done.iter().any(|one| of_it(&one)));
    let done = done.unwrap_or_else(PoisonError::into_inner);
    let (_, built) = done.iter().find(of_it).context("the image")?;
    built.clone().map_err(anyhow::Error::msg).context("its image")
}

fn try_recipe(host: &Host, recipe: &'static str) -> Result<()> {
    wait_for_image(recipe)?;
    let own = venvs(&host.dirs)?.own;
    let mut daemon = DAEMON.lock().unwrap_or_else(PoisonError::into_inner);
    let served = match daemon.take() {
        Some(served) => served,
        None => Served::start(host)?,
    };
    let url = served.url.clone();
    *daemon = Some(served);
    drop(daemon);
    let tag = format!("e2e-{recipe}");
    let forkd = |words: &[&str]| -> Result<()> {
        let done = host.forkd().args(words).output()?;
        ensure!(done.status.success(), "forkd {words:?}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    };
    forkd(&["snapshot", "--recipe", recipe, "--force", "--tag", &tag])?;
    let test = directory("../recipes").join(format!("test_{}.py", recipe.replace('-', "_")));
    let variables = [("FORKD_URL", &*url), ("FORKD_TOKEN", TOKEN), ("RECIPE", recipe), ("RECIPE_TAG", &*tag)];
    let tested = pytest(&own, &[test], &variables);
    let removed = forkd(&["rmi", &tag]);
    tested?;
    removed
}
