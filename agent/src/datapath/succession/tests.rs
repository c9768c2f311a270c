use rstest::rstest;

use super::*;

#[rstest]
#[case::alone(&[7], Behind::Nobody)]
#[case::last(&[8, 3, 7], Behind::Nobody)]
#[case::successor(&[3, 7, 8], Behind::Agent { answers: true, plans: true })]
#[case::successor_that_begins(&[3, 7, 9], Behind::Agent { answers: false, plans: false })]
#[case::successor_without_a_view(&[3, 7, 6], Behind::Agent { answers: true, plans: false })]
#[case::two_successors(&[7, 8, 9], Behind::Agent { answers: true, plans: true })]
#[case::foreign(&[8, 7, 3], Behind::Foreign)]
#[case::successor_behind_a_foreign_program(&[7, 3, 8], Behind::Agent { answers: true, plans: true })]
#[case::detached(&[8, 3], Behind::Nobody)]
fn only_an_agent_attached_later_is_a_successor(#[case] programs: &[u32], #[case] expected: Behind) {
    let has_mark = |mark: &str, id| match mark {
        STEERS => [6, 8, 9].contains(&id),
        ANSWERS => id == 6 || id == 8,
        _ => id == 8,
    };
    assert_eq!(behind(programs, 7, has_mark), expected);
}

const ALL: [&str; 3] = [STEERS, ANSWERS, PLANS];

/// An id that no kernel assigns, and no other test uses.
fn program() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    u32::MAX - std::process::id() * 16 - NEXT.fetch_add(1, Ordering::Relaxed)
}

fn agent(program: u32, marks: Marks) -> Succession {
    let namespace = File::open("/proc/thread-self/ns/net").unwrap();
    Succession::begin(program, namespace, marks)
}

fn said(by: &Succession, program: u32) -> [bool; 3] {
    ALL.map(|mark| by.marks.has(mark, program))
}

#[test]
fn other_agents_read_an_agents_marks() {
    let dir = tempfile::tempdir().unwrap();
    let marks = || Marks::new(None, Some(dir.path()));
    let (old, new) = (agent(program(), marks()), program());
    assert_eq!(said(&old, new), [false; 3]);
    let new = (agent(new, marks()), new);
    assert_eq!(said(&old, new.1), [true, false, false]);
    new.0.plan();
    new.0.plan();
    assert_eq!(said(&old, new.1), [true, false, true]);
    new.0.answer();
    assert_eq!(said(&old, new.1), [true; 3]);
}

#[test]
fn a_planner_is_known_after_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let marks = || Marks::new(None, Some(dir.path()));
    let (own, other) = (program(), program());
    let own = agent(own, marks());
    own.plan();
    assert_eq!(own.planners(), BTreeSet::new());
    let ended = agent(other, marks());
    assert_eq!(
        own.planners(),
        BTreeSet::new(),
        "it has not written the maps"
    );
    ended.plan();
    drop(ended);
    assert_eq!(own.planners(), BTreeSet::from([other]));
}

#[test]
fn an_agent_without_a_folder_is_foreign() {
    let dir = tempfile::tempdir().unwrap();
    let own = agent(program(), Marks::new(None, Some(dir.path())));
    let other = agent(program(), Marks::new(None, None));
    other.answer();
    assert_eq!(said(&own, other.program), [false; 3]);
    assert_eq!(said(&other, own.program), [false; 3]);
}

#[test]
fn marks_of_another_boot_are_ignored_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(FOLDER);
    fs::create_dir(&folder).unwrap();
    let (own, other) = (program(), program());
    for id in [own, other] {
        symlink("boot-before", folder.join(format!("{id}-{STEERS}"))).unwrap();
    }
    fs::write(folder.join("notes"), "").unwrap();
    let marks = Marks::new(None, Some(dir.path()));
    assert!(!marks.has(STEERS, other));
    marks.set(STEERS, own).unwrap();
    assert!(marks.has(STEERS, own));
    marks.forget(&BTreeSet::new());
    let mut left: Vec<_> = fs::read_dir(&folder).unwrap().flatten().collect();
    left.sort_by_key(fs::DirEntry::file_name);
    let names: Vec<_> = left.iter().map(fs::DirEntry::file_name).collect();
    assert_eq!(names, [format!("{own}-{STEERS}").as_str(), "notes"]);
}

#[test]
fn marks_of_agents_that_are_gone_are_removed_but_for_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let marks = Marks::new(None, Some(dir.path()));
    for id in 0..20 {
        marks.set(STEERS, id).unwrap();
        marks.set(PLANS, id).unwrap();
    }
    marks.forget(&BTreeSet::from([1, 30]));
    let left: Vec<u32> = (0..20).filter(|id| marks.has(STEERS, *id)).collect();
    assert_eq!(left, [&[1], &Vec::from_iter(4..20)[..]].concat());
    assert!(!marks.has(PLANS, 0) && marks.has(PLANS, 1));
}

/// An agent that is killed cannot remove its marks, so the next agents do.
#[test]
fn an_agent_removes_marks_of_killed_agents_as_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    let marks = || Marks::new(None, Some(dir.path()));
    for id in 0..40 {
        for mark in ALL {
            marks().set(mark, id).unwrap();
        }
    }
    let own = program();
    let agent = agent(own, marks());
    let left = marks_in(&dir.path().join(FOLDER)).map(|(id, ..)| id);
    let left: BTreeSet<u32> = left.collect();
    let newest: BTreeSet<u32> = (24..40).chain([own]).collect();
    assert_eq!(left, newest);
    assert!(!agent.planners().contains(&0));
}
