//! Plugins that wait below one directory until they are asked what they are (DEV-16): those of devices are handed on to
//! [`DevicePlugins`], all others are told that they are not supported.
//!
//! A look every ten seconds finds the sockets, and sooner at the sound of a doorbell. Each of them has a task that ends once its
//! plugin is registered or refused. Where the directory is not there, the look is all that is done.

use alloc::{collections::BTreeMap, rc::Rc, sync::Arc};
use core::{cell::RefCell, time::Duration};
use std::path::{Path, PathBuf};

use smol::{LocalExecutor, Task, future::or};

use super::{
    machine::registry::{self, DirectoryDoorbell, MAX_SOCKETS, PluginRegistration, SocketMark},
    news::DeviceLoop,
    plugins::DevicePlugins,
};
use crate::{
    agent::{
        clock::{Clock, GrpcClock, align_to_second},
        complaints::Complaints,
    },
    logic::devices::{self, DeclaredDevices},
    sys::lane::Lane,
};

/// Name of the directory, beside that of device plugins.
pub(crate) const DIR: &str = "plugins_registry";
/// Between two looks.
const POLL: Duration = Duration::from_secs(10);
/// At the sound of the doorbell looks follow each other no faster than this.
const PAUSE: Duration = Duration::from_millis(200);

/// See the module.
pub(crate) struct PluginRegistry {
    pub(crate) dir: PathBuf,
    pub(crate) plugins: Rc<DevicePlugins>,
    pub(crate) declared: Arc<DeclaredDevices>,
    pub(crate) agent: DeviceLoop,
    pub(crate) executor: Rc<LocalExecutor<'static>>,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) disk: Lane,
    pub(crate) complaints: Rc<Complaints>,
    /// Set if file notifications are used.
    pub(crate) doorbell: bool,
}

/// Registration of a socket: the resource, and the number of the connection.
type SocketRegistration = Rc<RefCell<Option<(String, u64)>>>;

/// A socket that was seen.
struct KnownSocket {
    mark: SocketMark,
    place: SocketRegistration,
    /// Asks it until it is registered or refused. Dropped, it stops.
    task: Task<()>,
}

impl PluginRegistry {
    /// As long as the agent.
    pub(crate) async fn run_registry(self) {
        let own = Rc::new(self);
        let mut known = BTreeMap::new();
        let mut bell: Option<DirectoryDoorbell> = None;
        // Bounded: by its pauses.
        loop {
            own.look_for_sockets(&mut known, &mut bell).await;
            let now = own.clock.now();
            let poll = own.clock.sleep_until(align_to_second(now + POLL, now));
            let Some(laid) = &bell else {
                poll.await;
                continue;
            };
            let is_good = or(laid.wait_for_ring(), async {
                poll.await;
                true
            })
            .await;
            if !is_good {
                bell = None;
            }
            own.clock.sleep_until(now + PAUSE).await;
        }
    }

    /// Looks once: takes leave of what has gone, then begins with what has come.
    async fn look_for_sockets(
        self: &Rc<Self>,
        known: &mut BTreeMap<PathBuf, KnownSocket>,
        bell: &mut Option<DirectoryDoorbell>,
    ) {
        let dir = self.dir.clone();
        let (is_wanted, before) = (self.doorbell, bell.take());
        let seen = self.disk.run_job(move || {
            // Nothing is watched where nothing can come.
            let bell = match dir.is_dir() && is_wanted {
                true => before.or_else(|| DirectoryDoorbell::open().ok()),
                false => None,
            };
            let seen = registry::find_plugin_sockets(&dir, bell.as_ref());
            (seen, bell)
        });
        let (seen, laid) = seen.await;
        *bell = laid;
        let shown = self.dir.display();
        let seen = match seen {
            Ok(seen) => seen,
            Err(e) => {
                self.complaints
                    .complain(&format!("cannot read {shown}: {e}"));
                return;
            }
        };
        if seen.more {
            let text = format!("{shown} has more than is looked at: {MAX_SOCKETS} sockets");
            self.complaints.complain(&text);
        }
        let is_there = |path: &Path, one: &KnownSocket| {
            seen.sockets.get(path).is_some_and(|mark| *mark == one.mark)
        };
        let gone: Vec<PathBuf> = (known.iter())
            .filter(|(path, one)| !is_there(path, one))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            let Some(KnownSocket { place, task, .. }) = known.remove(&path) else {
                continue;
            };
            drop(task);
            let place = place.take();
            if let Some((resource, number)) = place {
                self.plugins
                    .drop_plugin(&resource, number, &self.agent)
                    .await;
            }
        }
        for (path, mark) in seen.sockets {
            known.entry(path).or_insert_with_key(|path| {
                let place = SocketRegistration::default();
                let ask = Rc::clone(self).ask_until_registered(path.clone(), Rc::clone(&place));
                KnownSocket {
                    mark,
                    place,
                    task: self.executor.spawn(ask),
                }
            });
        }
    }

    /// Asks a socket until its plugin is registered or refused.
    async fn ask_until_registered(self: Rc<Self>, path: PathBuf, place: SocketRegistration) {
        let (mut failures, mut told) = (0, String::new());
        // Bounded: by the pauses between its questions.
        while !self.ask_socket_once(&path, &place, &mut told).await {
            failures += 1;
            let now = self.clock.now();
            let next = align_to_second(now + devices::retry_pause(failures), now);
            self.clock.sleep_until(next).await;
        }
    }

    /// Returns whether there is no more to ask. `told`: what was complained of it last; a dead socket may lie there for ever.
    async fn ask_socket_once(
        &self,
        path: &Path,
        place: &SocketRegistration,
        told: &mut String,
    ) -> bool {
        let of = format!("the plugin at {}", path.display());
        let mut complain = |why: &str| {
            let text = format!("{of}: {}", devices::escape_message(why));
            if text != *told {
                self.complaints.complain_of(&of, &text);
                *told = text;
            }
        };
        let time = Rc::new(GrpcClock(Rc::clone(&self.clock)));
        let dialled = PluginRegistration::dial(path, &self.executor, time).await;
        let (registration, info) = match dialled {
            Ok(dialled) => dialled,
            Err(e) => {
                complain(&e.message);
                return false;
            }
        };
        let resource = &info.name;
        let declared = self.declared.find_entry(resource).is_some();
        let wanted = devices::check_plugin_info(
            &info.kind,
            resource,
            &info.endpoint,
            &info.versions,
            declared,
        );
        let (error, is_done) = match wanted {
            Err(why) => {
                let why = why.to_string();
                complain(&format!("it is refused: {why}"));
                (why, true)
            }
            Ok(()) => {
                let endpoint = match &*info.endpoint {
                    "" => path,
                    endpoint => Path::new(endpoint),
                };
                let (plugins, executor) = (Rc::clone(&self.plugins), Rc::clone(&self.executor));
                let agent = self.agent.clone();
                // It has complained itself.
                match plugins
                    .connect_plugin(resource, endpoint, executor, agent)
                    .await
                {
                    Ok(number) => {
                        *place.borrow_mut() = Some((resource.clone(), number));
                        (String::new(), true)
                    }
                    Err(e) => (e.message, false),
                }
            }
        };
        // What it is told changes nothing of what it is.
        if let Err(e) = registration.notify(&error).await {
            complain(&format!(
                "it cannot be told the result of its registration: {}",
                e.message
            ));
        }
        is_done
    }
}
