//! Each group of faults does what it says, seen from outside: the network's router, the disks of
//! their own, the freezer, the library inside the process. What needs root says so where it is not.
#![allow(
    clippy::disallowed_methods,
    reason = "tests drive real processes, sockets and files"
)]

use std::fs::{self, File};
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use corduroy_env::Env;
use corduroy_jepsen::clean::{Made, RunFile};
use corduroy_jepsen::cluster::freezer;
use corduroy_jepsen::cluster::image::Image;
use corduroy_jepsen::faults::shim::{self, Control, Writes};
use corduroy_jepsen::topology::link::{Cut, Host, Link, LinkTable};
use corduroy_jepsen::topology::{Topology, TopologyKind};

/// How long something may take that has to come.
const WAIT_MAX: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(5);

fn has_root(what: &str) -> bool {
    let has = rustix::process::geteuid().is_root();
    if !has {
        println!("SKIPPED: {what} needs root");
    }
    has
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

async fn wait_for(env: &Env, what: &str, mut is_there: impl FnMut() -> bool) {
    let deadline = env.now() + WAIT_MAX;
    while !is_there() {
        assert!(env.now() < deadline, "waited in vain: {what}");
        env.sleep(LOOK).await;
    }
}

#[test]
fn the_router_drops_and_resets_what_a_cut_says_and_nothing_after_it() {
    if !has_root("the router between namespaces") {
        return;
    }
    block_on(async {
        let env = Env::real();
        let mut run_file = RunFile::begin(&env).unwrap();
        let kind = TopologyKind::Namespaces;
        let mut topology = Topology::build(&env, kind, 1, 7, &mut run_file)
            .await
            .unwrap();
        let node = Host::node(1);
        let ip = topology.places[0].kafka.ip();
        let listens = topology.within(node, || Ok(TcpListener::bind((ip, 0))?));
        let listener = listens.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let mut client = TcpStream::connect_timeout(&address, WAIT_MAX).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        served.set_nonblocking(true).unwrap();
        client.set_nonblocking(true).unwrap();
        let cut = |cut| {
            let mut table = LinkTable::default();
            let link = Link {
                cut,
                ..Link::default()
            };
            table.add(Host::CLIENTS, node, link);
            table
        };

        let layer = topology.links.put(cut(Cut::Silent));
        client.write_all(b"x").unwrap();
        wait_for(&env, "a packet that is dropped", || {
            topology.links.touched(layer) > 0
        })
        .await;
        let mut bytes = [0];
        let held = served.read(&mut bytes).unwrap_err();
        assert_eq!(held.kind(), ErrorKind::WouldBlock, "nothing came through");
        topology.links.take(layer);
        wait_for(&env, "the byte, once healed", || {
            served.read(&mut bytes).is_ok_and(|count| count == 1)
        })
        .await;
        assert_eq!(&bytes, b"x");

        let layer = topology.links.put(cut(Cut::Reset));
        client.write_all(b"y").unwrap();
        wait_for(&env, "a reset", || {
            let read = client.read(&mut bytes);
            read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
        })
        .await;
        assert!(topology.links.touched(layer) > 0);
        drop(topology);
        run_file.remove_all(&env).await.unwrap();
    });
}

#[test]
fn a_disk_of_its_own_runs_full_and_loses_what_was_not_flushed() {
    if !has_root("a disk of its own") {
        return;
    }
    block_on(async {
        let env = Env::real();
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let mut run_file = RunFile::begin(&env).unwrap();
        let mount = dir.join("disk");
        let image = dir.join(format!("{}.img", run_file.prefix()));
        let disk = Image::make_of(64 << 20, image, mount.clone(), &mut run_file).unwrap();

        let filled = disk.fill().unwrap();
        assert!(filled > 1 << 20, "{filled}");
        let big = vec![1; 1 << 20];
        let refused = fs::write(mount.join("big"), &big).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
        disk.empty().unwrap();
        fs::write(mount.join("big"), &big).unwrap();

        let flushed = File::create(mount.join("flushed")).unwrap();
        (&flushed).write_all(b"kept").unwrap();
        flushed.sync_all().unwrap();
        File::open(&mount).unwrap().sync_all().unwrap();
        fs::write(mount.join("unflushed"), b"gone").unwrap();
        drop(flushed);
        disk.cut_power().unwrap();
        disk.power_on(&env).await.unwrap();
        assert_eq!(fs::read(mount.join("flushed")).unwrap(), b"kept");
        let lost = fs::read(mount.join("unflushed")).unwrap_or_default();
        assert_eq!(lost, b"", "it was never flushed");
        run_file.remove_all(&env).await.unwrap();
    });
}

#[test]
fn a_frozen_process_does_nothing_until_it_is_thawed() {
    if !has_root("a control group") {
        return;
    }
    block_on(async {
        let env = Env::real();
        let mut run_file = RunFile::begin(&env).unwrap();
        let Some(group) = freezer::place(&format!("{}-test", run_file.prefix())) else {
            println!("SKIPPED: this machine has no freezer");
            return;
        };
        run_file
            .note(Made::Cgroup {
                path: group.clone(),
            })
            .unwrap();
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        run_file.note_process(child.id()).unwrap();
        freezer::enclose(&group, child.id()).unwrap();
        freezer::freeze(&group).unwrap();
        wait_for(&env, "a frozen group", || freezer::is_frozen(&group)).await;
        let mut stdout = child.stdout.take().unwrap();
        rustix::io::ioctl_fionbio(&stdout, true).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let mut bytes = [0];
        let nothing = stdout.read(&mut bytes).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        freezer::thaw(&group);
        wait_for(&env, "what it was told", || {
            stdout.read(&mut bytes).is_ok_and(|count| count == 1)
        })
        .await;
        assert!(!freezer::is_frozen(&group));
        child.kill().unwrap();
        child.wait().unwrap();
        run_file.remove_all(&env).await.unwrap();
    });
}

/// Says of each call what came of it: `write 8`, `read -5` (minus errno).
const PROBE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#define SAY(name, call) do { long got = (call); printf("%s %ld\n", name, got < 0 ? -(long)errno : got); } while (0)
int main(int count, char **names) {
    char bytes[8] = "unfaulty";
    if (count < 3)
        return 0;
    int file = open(names[1], O_RDWR);
    struct timespec time;
    SAY("write", pwrite(file, bytes, 8, 0));
    SAY("extend", pwrite(file, bytes, 8, 8));
    SAY("read", pread(file, bytes, 8, 0));
    SAY("flush", fdatasync(file));
    SAY("lengthen", ftruncate(file, 32));
    SAY("create", open(names[2], O_RDWR | O_CREAT, 0600) < 0 ? -1 : 0);
    SAY("rename", rename(names[1], names[1]));
    clock_gettime(CLOCK_REALTIME, &time);
    printf("time %ld\n", (long)time.tv_sec);
    return 0;
}
"#;

/// Compiles the probe; `None` if that cannot be done here.
fn probe(dir: &Path, option: Option<&str>) -> Option<PathBuf> {
    let source = dir.join("probe.c");
    fs::write(&source, PROBE).unwrap();
    let program = dir.join(option.map_or("probe", |_| "probe-static"));
    let built = Command::new("cc")
        .args(option)
        .arg("-o")
        .args([&program, &source])
        .output();
    built
        .is_ok_and(|output| output.status.success())
        .then_some(program)
}

#[test]
fn the_library_hits_the_calls_that_it_is_told_to_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (Ok(library), Some(program)) = (shim::build(dir), probe(dir, None)) else {
        println!("SKIPPED: there is no C compiler `cc`");
        return;
    };
    shim::works(&library, dir, &program).unwrap();
    let control = Control::make(dir.join("control")).unwrap();
    let file = dir.join("file");
    let said = || -> Vec<i64> {
        fs::write(&file, [0; 8]).unwrap();
        let output = Command::new(&program)
            .args([&file, &dir.join("created")])
            .env("LD_PRELOAD", &library)
            .env(shim::VARIABLE, control.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let numbers = text.lines().filter_map(|line| line.split_once(' '));
        numbers.map(|(_, number)| number.parse().unwrap()).collect()
    };
    let (eio, enospc) = (-i64::from(libc::EIO), -i64::from(libc::ENOSPC));
    // write, extend, read, flush, lengthen, create, rename
    let well = [8, 8, 8, 0, 0, 0, 0];
    let mut hits = 0;
    type Switch<'a> = &'a dyn Fn() -> anyhow::Result<()>;
    let cases: [(Switch<'_>, [i64; 7], u64); 6] = [
        (&|| Ok(()), well, 0),
        (
            &|| control.break_writes(Writes::Fail, 1000),
            [eio, eio, 8, 0, 0, 0, 0],
            2,
        ),
        (
            &|| control.break_writes(Writes::Part, 1000),
            [4, 4, 8, 0, 0, 0, 0],
            2,
        ),
        // What is written over has its place already.
        (
            &|| control.break_writes(Writes::Full, 1000),
            [8, enospc, 8, 0, enospc, enospc, enospc],
            4,
        ),
        (&|| control.break_reads(1000), [8, 8, eio, 0, 0, 0, 0], 1),
        (&|| control.break_flushes(), [8, 8, 8, eio, 0, 0, 0], 1),
    ];
    for (number, (switch, expected, more)) in cases.into_iter().enumerate() {
        switch().unwrap();
        let said = said();
        assert_eq!(said[..7], expected, "case {number}");
        hits += more;
        // The loader opens and reads files of its own, but creates none.
        assert_eq!(control.hits(), hits, "case {number}");
        control.mend_disk().unwrap();
    }
    assert_eq!(control.wall_looks(), 0);
    let before = said()[7];
    control.shift_wall(-7_200_000_000_000).unwrap();
    let after = said()[7];
    assert!(
        (7_000..7_400).contains(&(before - after)),
        "{before} {after}"
    );
    assert_eq!(control.wall_looks(), 1);
    assert!(control.loads() > 0);
}

#[test]
fn a_program_that_does_not_load_the_library_is_told_from_one_that_does() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (Ok(library), Some(program)) = (shim::build(dir), probe(dir, Some("-static"))) else {
        println!("SKIPPED: there is no C compiler `cc` that links statically");
        return;
    };
    let why = shim::works(&library, dir, &program).unwrap_err();
    assert!(why.contains("does not load the library"), "{why}");
    let why = shim::works(&library, dir, Path::new("/nowhere")).unwrap_err();
    assert!(why.contains("cannot run /nowhere"), "{why}");
}
