//! Images for the daemon in the emulated host, which reaches no network: built out here, where programs run at full speed
//! and package sources are, and brought inside.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use api::CreateSnapshot;
use daemon::build_for;
use image::Recipe;
use session::{DialTarget, Transport};
use types::Dirs;
use types::progress::Progress;

use crate::errors::chain;
use crate::parts::Parts;
use crate::remote::{self, Remote};
use crate::run::GuestArgs;

/// How many recipes may be built at once; one whose turn has not come waits.
const BUILDERS: usize = 2;
/// After a connection that could not be had.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the daemon inside expects who builds for it.
pub(super) fn socket() -> String {
    remote::inside("run/builder.sock")
}

/// Builds what the daemon inside asks for, for as long as we live.
pub(super) fn stand_by(remote: Remote, dirs: &Dirs) -> anyhow::Result<()> {
    let remote = Arc::new(remote);
    for _ in 0..BUILDERS {
        let (remote, dirs) = (Arc::clone(&remote), dirs.clone());
        // Not joined: it goes with us.
        let builder = thread::Builder::new().name("builder".into());
        builder.spawn(move || wait(&remote, &dirs)).context("cannot start a thread")?;
    }
    Ok(())
}

fn wait(remote: &Remote, dirs: &Dirs) {
    loop {
        let waited = dial(remote).and_then(|stream| {
            build_for(stream, |asked, recipe, progress| {
                log::info!("building `{}` for the daemon inside", recipe.name);
                build(asked, &recipe, dirs, progress).map_err(|error| chain(&error))
            })
            .context("the daemon inside does not ask for images")
        });
        if let Err(error) = waited {
            log::debug!("{}", chain(&error));
            thread::sleep(PAUSE);
        }
    }
}

fn dial(remote: &Remote) -> anyhow::Result<Transport> {
    let to = DialTarget::Unix { path: socket().parse()? };
    Ok(remote.machine().connect()?.dial(&to)?)
}

fn build(
    asked: CreateSnapshot,
    recipe: &Recipe,
    dirs: &Dirs,
    progress: &dyn Progress,
) -> anyhow::Result<CreateSnapshot> {
    Parts::find(&GuestArgs::of_recipe(recipe.name.to_string()), dirs, progress)?.fill(asked, dirs, progress)
}
