//! The store and its logs: opened, created, removed, closed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use corduroy_env::Env;
use corduroy_record::{GroupId, ReplicaId};
use tokio::sync::{Notify, Semaphore, mpsc};

use super::run::Runner;
use super::{CacheBudget, Pins, Queue, Store, StoreInner};
use crate::config::{IoMode, JOURNAL_FILE_BYTES_MIN, LogConfig, StoreConfig};
use crate::disk::{Disk, create_dir_durably, replace_file};
use crate::entry::LogStart;
use crate::error::{IoContext, StorageError};
use crate::flusher::{Flusher, Inbox};
use crate::journal::JournalWriter;
use crate::log::{Log, LogCore, LogShared, find_saved};
use crate::metrics::{DiskLevel, TurnCounters};
use crate::paths;
use crate::pool::{Pool, spawn};
use crate::recovery::holds_replica;
use crate::registry::{Registration, register_journal, registered};
use crate::reserve::Reserve;
use crate::state::{JournalPlace, StateImage};
use crate::turn::{Output, TurnWorker};

/// Threads that serve cold reads of a shard.
const READ_THREADS: usize = 2;
/// Threads that flush segments beside the journal.
const FLUSH_THREADS: usize = 3;

impl Store {
    /// Opens a shard's store. [`crate::recover`] must have run on the data directory.
    ///
    /// # Errors
    /// [`StorageError::NeedsRecovery`], the operating system's, and a configuration that makes
    /// no sense.
    pub fn open(disk: Arc<dyn Disk>, config: StoreConfig, env: Env) -> Result<Store, StorageError> {
        if config.journal_file_bytes < JOURNAL_FILE_BYTES_MIN
            || config.journal_file_bytes > u64::from(u32::MAX)
            || !config.journal_file_bytes.is_multiple_of(4096)
            || config.journal_files_max < 3
        {
            let what = format!(
                "a journal of {} files of {} bytes is out of range: at least 3 files, each a \
                 multiple of 4096 between {JOURNAL_FILE_BYTES_MIN} and {} bytes",
                config.journal_files_max,
                config.journal_file_bytes,
                u32::MAX
            );
            return Err(StorageError::Foreign {
                path: config.root,
                what: what.into(),
            });
        }
        let dir = paths::journal_dir(&config.root, config.shard);
        create_dir_durably(&*disk, &config.root, &dir).during("create", &dir)?;
        let session = env.random_u64().max(1);
        let journal = JournalWriter::open(
            disk.clone(),
            dir.clone(),
            config.journal_file_bytes,
            config.journal_files_max,
            session,
        )?;
        // Only now that its files are durable: a mark without a journal means that it was lost.
        register_journal(&*disk, &config.root, config.shard)?;
        let (inbox, inputs) = Inbox::new();
        let (sender, outputs) = mpsc::unbounded_channel();
        let counters = Arc::new(TurnCounters::default());
        let shard = config.shard;
        let pool =
            |name: &str, threads| Pool::new(&env, config.io, &format!("{name}-{shard}"), threads);
        let failed = sender.clone();
        let keeper = Pool::background(&env, config.io, &format!("keep-{shard}"), 1, move || {
            // A file that never came, a checkpoint that never ended: turns would wait for it
            // for ever (law 3).
            let panicked = StorageError::Failed("background work of the store panicked".into());
            failed.send(Output::Failed(panicked)).ok();
        })?;
        let readers = pool("read", READ_THREADS)?;
        let reserve = Reserve::open(&*disk, &dir, config.reserve_bytes);
        let worker = TurnWorker {
            disk: disk.clone(),
            env: env.clone(),
            journal,
            inline_bytes_max: config.inline_bytes_max,
            file_bytes: config.journal_file_bytes,
            outputs: sender.clone(),
            inbox: inbox.clone(),
            keeper: keeper.clone(),
            flushers: pool("sync", FLUSH_THREADS)?,
            reserve,
            counters: counters.clone(),
            backlog: VecDeque::new(),
            refused: HashMap::new(),
            overcommit: false,
            stalled: false,
            closing: false,
            arena: Vec::new(),
        };
        let (inline, flusher) = match config.io {
            IoMode::Inline => (Some((Box::new(worker), inputs.inputs)), None),
            IoMode::Threads => {
                let (flusher, serve) = Flusher::new(worker, inputs);
                spawn(&env, &format!("flush-{shard}"), serve)?;
                (None, Some(flusher))
            }
        };
        let free_bytes = disk.free_bytes(&config.root).unwrap_or(u64::MAX);
        let inner = StoreInner {
            disk,
            config,
            env,
            session,
            readers,
            keeper,
            counters,
            cached_reads: Cell::new(0),
            appended_bytes: Cell::new(0),
            append_times: RefCell::default(),
            cache: RefCell::new(CacheBudget::default()),
            indices: RefCell::default(),
            logs: RefCell::new(BTreeMap::new()),
            queue: RefCell::new(Queue::default()),
            pins: RefCell::new(Pins::default()),
            failure: RefCell::new(None),
            closing: Cell::new(false),
            closed: Cell::new(false),
            close_sent: Cell::new(false),
            stalled_at: Cell::new(None),
            backlog: Cell::new(0),
            closers: RefCell::new(Vec::new()),
            wake: Notify::new(),
            inbox,
            flusher,
            runner: RefCell::new(Some(Runner {
                outputs,
                sender,
                inline,
            })),
            free_bytes: Cell::new(free_bytes),
            disk_level: Cell::new(DiskLevel::Plenty),
            space_checked: Cell::new(None),
        };
        Ok(Store {
            inner: Rc::new(inner),
        })
    }

    /// Registers a new replica, durably, and opens its empty log.
    ///
    /// # Errors
    /// [`StorageError::AlreadyExists`]; [`StorageError::Unidentified`] if the files of another
    /// replica are there that was not removed; a failed or closed store; the operating system's.
    pub async fn create_log(
        &self,
        group: GroupId,
        replica: ReplicaId,
        config: LogConfig,
    ) -> Result<Log, StorageError> {
        let inner = &self.inner;
        inner.accepts()?;
        if self.contains(group) {
            return Err(StorageError::AlreadyExists { group });
        }
        let registration = Registration {
            group,
            replica,
            incarnation: inner.env.random_u64(),
        };
        let mut image = StateImage::new(group, replica, registration.incarnation);
        image.place = JournalPlace {
            session: inner.session,
            turn: 0,
        };
        let (disk, root) = (inner.disk.clone(), inner.config.root.clone());
        let dir = paths::partition_dir(&root, group);
        let (state, session) = (image.clone(), inner.session);
        let create_dir = dir.clone();
        let create = move || {
            // The files of a replica that was removed and not yet cleared away.
            if disk.exists(&create_dir).during("look for", &create_dir)? {
                refuse_unidentified(&*disk, &create_dir, group, session)?;
                disk.remove_dir_all(&create_dir)
                    .during("remove", &create_dir)?;
            }
            create_dir_durably(&*disk, &root, &create_dir).during("create", &create_dir)?;
            // Twice, so that the file that checkpoints swap with is there from the start.
            state.save(&*disk, &create_dir)?;
            state.save(&*disk, &create_dir)?;
            registration.save(&*disk, &root)
        };
        inner.keeper.call(create).await??;
        if inner.log(group).is_some() {
            return Err(StorageError::AlreadyExists { group });
        }
        Ok(inner.install(image, &dir, config))
    }

    /// Opens a registered replica's log, lazily: reads its state file, scans nothing. A damaged
    /// one opens too, with its flags raised durably; see [`Log::state`].
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if it was never created here; a failed or closed store; the
    /// operating system's.
    pub fn open_log(&self, group: GroupId, config: LogConfig) -> Result<Log, StorageError> {
        let log = self.open_uncut(group, config)?;
        log.discard_damaged()?;
        Ok(log)
    }

    /// [`Store::open_log`] for a log of which there is no other copy: nobody could send again what
    /// is cut. Damage below its end is an error that says where it is, and stays on the disk as it
    /// is (DESIGN 5.4: nothing acknowledged is repaired away).
    ///
    /// # Errors
    /// As [`Store::open_log`], and [`StorageError::Damaged`].
    pub fn open_only_copy(&self, group: GroupId, config: LogConfig) -> Result<Log, StorageError> {
        let is_open = self.inner.log(group).is_some();
        let what = match self.open_uncut(group, config) {
            Ok(log) => match log.describe_loss()? {
                Some(what) => what,
                None => return Ok(log),
            },
            Err(StorageError::Unidentified { what, .. }) => what.to_string(),
            Err(error) => return Err(error),
        };
        if !is_open {
            self.inner.logs.borrow_mut().remove(&group);
        }
        let dir = paths::partition_dir(&self.inner.config.root, group);
        let dir = dir.display();
        let what = format!(
            "{what}; there is no other copy, so the partition stays offline and nothing is cut: \
             look at it with `corduroy debug log-dump {dir} --verify`"
        );
        Err(StorageError::damaged(group, what))
    }

    /// [`Store::open_log`] for whoever knows which replica was placed here. Where the files do not
    /// say it any more ([`StorageError::Unidentified`]), it is registered again under that id: it has
    /// lost its log and its vote, so it opens as damaged, and neither votes nor leads until it has
    /// fetched its log from its leader (laws 7 and 8). No segment is removed.
    ///
    /// # Errors
    /// As [`Store::open_log`].
    pub fn open_placed_log(
        &self,
        group: GroupId,
        replica: ReplicaId,
        config: LogConfig,
    ) -> Result<Log, StorageError> {
        match self.open_log(group, config) {
            Err(StorageError::Unidentified { .. }) => {
                self.register_again(group, replica)?;
                self.open_log(group, config)
            }
            opened => opened,
        }
    }

    fn register_again(&self, group: GroupId, replica: ReplicaId) -> Result<(), StorageError> {
        let inner = &self.inner;
        let (disk, root) = (&*inner.disk, &inner.config.root);
        // Of another incarnation: whatever the journal still holds of the former one is not its.
        let registration = Registration {
            group,
            replica,
            incarnation: inner.env.random_u64(),
        };
        tracing::warn!(%group, %replica,
            "a replica that its files do not identify is registered again, as damaged");
        registration.save(disk, root)
    }

    /// The log with the damage that is in it.
    fn open_uncut(&self, group: GroupId, config: LogConfig) -> Result<Log, StorageError> {
        let inner = &self.inner;
        inner.accepts()?;
        if let Some(shared) = inner.log(group) {
            let log = Log { shared };
            log.set_config(config);
            return Ok(log);
        }
        let (disk, root) = (&*inner.disk, &inner.config.root);
        let dir = paths::partition_dir(root, group);
        let loaded = load_replica(disk, root, group)?.ok_or(StorageError::NotFound { group })?;
        let mut image = loaded.image;
        if loaded.is_new_damage {
            // The flags before it starts (law 8).
            create_dir_durably(disk, root, &dir).during("create", &dir)?;
            image.save(disk, &dir)?;
        }
        image.committed = crate::log::clamp(image.committed, image.last);
        let log = inner.install(image, &dir, config);
        {
            let mut core = log.shared.core.borrow_mut();
            core.tables = loaded.tables;
            core.snapshot = loaded.snapshot;
        }
        Ok(log)
    }

    /// Whether a replica of this group is registered here. So it is where the disk does not say:
    /// whoever opens it is told why, and nobody takes it for new (law 7).
    pub fn contains(&self, group: GroupId) -> bool {
        let inner = &self.inner;
        let registration = paths::registration(&inner.config.root, group);
        inner.log(group).is_some() || inner.disk.exists(&registration).unwrap_or(true)
    }

    /// The groups that have a replica registered in this data directory, whichever store opens it.
    ///
    /// # Errors
    /// A closed store; the operating system's.
    pub async fn registered(&self) -> Result<Vec<GroupId>, StorageError> {
        let inner = &self.inner;
        let (disk, root) = (inner.disk.clone(), inner.config.root.clone());
        let listed = inner.keeper.call(move || {
            let dir = paths::registry_dir(&root);
            registered(&*disk, &root).during("list", &dir)
        });
        listed.await?
    }

    /// Forgets a replica: its registration is durably gone when this returns, its data goes in
    /// the background. Open handles of the log are refused from the start.
    ///
    /// # Errors
    /// [`StorageError::NotFound`]; a failed or closed store; the operating system's.
    pub async fn remove_log(&self, group: GroupId) -> Result<(), StorageError> {
        let inner = &self.inner;
        inner.accepts()?;
        if !self.contains(group) {
            return Err(StorageError::NotFound { group });
        }
        // Whoever closes the last descriptor of a removed file frees its blocks: the keeper.
        let mut files = VecDeque::new();
        if let Some(shared) = inner.log(group) {
            // What is under way still needs the directory.
            let flushed = Log {
                shared: shared.clone(),
            }
            .flush()
            .await;
            shared.removed.set(true);
            if let Err(error @ StorageError::Failed(_)) = flushed {
                return Err(error);
            }
            Log {
                shared: shared.clone(),
            }
            .settle(inner)
            .await?;
            inner.unpin(&shared);
            inner.logs.borrow_mut().remove(&group);
            files = std::mem::take(&mut shared.core.borrow_mut().segments);
        }
        let (disk, root) = (inner.disk.clone(), inner.config.root.clone());
        let unregister = {
            let (disk, root) = (disk.clone(), root.clone());
            move || {
                let dir = paths::partition_dir(&root, group);
                if disk.exists(&dir).during("look for", &dir)? {
                    let mark = paths::removed_mark(&dir);
                    replace_file(&*disk, &mark, &[]).during("write", &mark)?;
                }
                Registration::remove(&*disk, &root, group)?;
                // Before the mark can go: a directory with a state and without it would look like one
                // whose registration was lost.
                remove_state(&*disk, &dir)
            }
        };
        inner.keeper.call(unregister).await??;
        inner.keeper.run(move || {
            let dir = paths::partition_dir(&root, group);
            if let Err(error) = disk.remove_dir_all(&dir)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(dir = %dir.display(), %error,
                    "the data of a removed partition stays");
            }
            if let Some(topic) = dir.parent()
                && group != GroupId::CONTROLLER
                && disk.list(topic).is_ok_and(|names| names.is_empty())
            {
                disk.remove_dir_all(topic).ok();
            }
            drop(files);
        });
        Ok(())
    }

    /// A clean stop: makes everything durable, checkpoints all logs, empties the journal (an
    /// empty journal is the mark of a clean stop), ends [`Store::run`].
    ///
    /// # Errors
    /// A failed store; a full disk, which leaves the stop unclean and loses nothing.
    pub async fn close(&self) -> Result<(), StorageError> {
        self.inner.close().await
    }
}

impl Log {
    /// Waits for operations that were submitted before the log was marked removed.
    async fn settle(&self, inner: &StoreInner) -> Result<(), StorageError> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let done = crate::log::AppendDone::durable(move |result| drop(sender.send(result)));
        inner.submit(
            &self.shared,
            crate::turn::Action::Barrier,
            super::Effect::Barrier,
            done,
        );
        match receiver.await.map_err(|_| StorageError::Closed)? {
            Err(error @ StorageError::Failed(_)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl StoreInner {
    fn install(self: &Rc<Self>, image: StateImage, dir: &Path, config: LogConfig) -> Log {
        let (group, replica, incarnation) = (image.group, image.replica, image.incarnation);
        let core = LogCore::from_image(image, dir, config);
        let shared = Rc::new_cyclic(|this| LogShared {
            this: this.clone(),
            group,
            replica,
            incarnation,
            dir: dir.to_owned(),
            store: Rc::downgrade(self),
            core: RefCell::new(core),
            removed: Cell::new(false),
            snapshot_turn: Semaphore::new(1),
            cache_used: self.cache.borrow().used(),
        });
        self.logs.borrow_mut().insert(group, shared.clone());
        Log { shared }
    }
}

/// A registered replica as its files say, with damage turned into flags.
pub(crate) struct LoadedReplica {
    pub image: StateImage,
    pub tables: Vec<corduroy_record::LogIndex>,
    pub snapshot: Option<(corduroy_record::Term, corduroy_record::LogIndex)>,
    /// The image differs from the state file and must be saved before it is used.
    pub is_new_damage: bool,
    pub damage: Option<String>,
}

/// Reads what a replica's files say. `Ok(None)`: it is not registered.
pub(crate) fn load_replica(
    disk: &dyn Disk,
    root: &Path,
    group: GroupId,
) -> Result<Option<LoadedReplica>, StorageError> {
    let dir = paths::partition_dir(root, group);
    let loaded = StateImage::load(disk, &dir, group)?;
    let registration = match Registration::load(disk, root, group) {
        Ok(Some(registration)) => registration,
        Ok(None) => return Ok(None),
        Err(StorageError::Damaged { .. }) => match &loaded {
            // The state file carries the same identity.
            Ok(image) => {
                let (replica, incarnation) = (image.replica, image.incarnation);
                let registration = Registration {
                    group,
                    replica,
                    incarnation,
                };
                registration.save(disk, root)?;
                registration
            }
            Err(what) => {
                let path = paths::registration(root, group);
                let what = format!("{}: bad checksum; {what}", path.display());
                return Err(StorageError::Unidentified {
                    group,
                    what: what.into(),
                });
            }
        },
        Err(error) => return Err(error),
    };
    let saved = find_saved(disk, &dir, group)?;
    let mut damage = None;
    let mut image = match loaded {
        Ok(image) if image.incarnation == registration.incarnation => image,
        Ok(_) => {
            damage = Some("the state file is another incarnation's".to_owned());
            StateImage::new(group, registration.replica, registration.incarnation)
        }
        Err(what) => {
            damage = Some(what);
            StateImage::new(group, registration.replica, registration.incarnation)
        }
    };
    if damage.is_some() {
        image.next_segment = next_segment_after(disk, &dir);
    }
    let snapshot_reaches = saved
        .snapshot
        .is_some_and(|(_, index)| index.next() >= image.start.index);
    if image.start.prev.is_some() && !snapshot_reaches {
        damage = Some(match &saved.snapshot_damage {
            Some(error) => error.to_string(),
            None => "the snapshot at the log's start is missing".to_owned(),
        });
        image.empty_at(LogStart::ZERO);
    }
    if let Some(what) = &damage {
        tracing::error!(%group, %what,
            "a replica is damaged: it neither votes nor leads until it has fetched its log again");
        image.damaged = true;
        image.no_vote = true;
    }
    let is_new_damage = damage.is_some();
    Ok(Some(LoadedReplica {
        image,
        tables: saved.tables,
        snapshot: saved.snapshot,
        is_new_damage,
        damage,
    }))
}

/// What lies where a replica is to be created may only be removed if it is no replica's: one that
/// lost its registration must not come back as new, without its vote (law 7).
fn refuse_unidentified(
    disk: &dyn Disk,
    dir: &Path,
    group: GroupId,
    session: u64,
) -> Result<(), StorageError> {
    if !holds_replica(disk, dir)? {
        return Ok(());
    }
    let what = match StateImage::load(disk, dir, group)? {
        // A creation that failed a moment ago: nothing was ever opened here.
        Ok(image) if image.place == (JournalPlace { session, turn: 0 }) && image.vote.is_none() => {
            return Ok(());
        }
        Ok(image) => format!("{}: of replica {}", dir.display(), image.replica),
        Err(what) => what,
    };
    let what = format!("{what}; its registration is gone").into();
    Err(StorageError::Unidentified { group, what })
}

/// Removes a removed replica's state files, durably.
fn remove_state(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    let state = paths::state_file(dir);
    for path in [state.with_added_extension("spare"), state] {
        match disk.remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StorageError::io("remove", &path, &error));
            }
            _ => {}
        }
    }
    match disk.exists(dir).during("look for", dir)? {
        true => disk.flush_dir(dir).during("flush", dir),
        false => Ok(()),
    }
}

fn next_segment_after(disk: &dyn Disk, dir: &Path) -> u32 {
    let names = disk.list(dir).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| paths::parse_segment(name))
        .max()
        .map_or(0, |id| id + 1)
}
