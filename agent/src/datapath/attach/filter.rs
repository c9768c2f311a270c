//! Filters of the clsact qdisc. A filter is named by its place alone, which is the same for every
//! agent: before one is deleted the kernel is asked whether it is still ours, since a successor puts
//! its own in place of it.

use std::io;

use aya::programs::tc::{
    NlOptions, SchedClassifierLink, SchedClassifierLinkId, TcAttachOptions, TcHandle,
};
use aya::programs::{ProgramError, SchedClassifier, tc};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::hook::{Direction, HookError, Place};
use crate::datapath::dump::{attributes, dump, request, too_short, word};

const NEW_FILTER: u16 = 44;
const GET_FILTER: u16 = 46;
/// `struct tcmsg`: family, padding, interface, handle, parent, priority and protocol; then
/// attributes.
const MESSAGE: usize = 20;
/// `TCA_OPTIONS`.
const OPTIONS: u16 = 2;
/// `TCA_BPF_NAME`.
const PROGRAM_NAME: u16 = 7;
/// `TCA_BPF_ID`.
const PROGRAM_ID: u16 = 11;

/// One of our filters. Dropped, it is deleted, unless another stands in its place by then.
pub(in crate::datapath) struct Filter {
    link: Option<SchedClassifierLink>,
    program: u32,
    index: u32,
    direction: Direction,
    place: &'static Place,
}

impl Filter {
    /// Adds a filter, in place of a former agent's.
    pub(in crate::datapath) fn attach(
        classifier: &mut SchedClassifier,
        (index, device): (u32, &str),
        direction: Direction,
        place: &'static Place,
    ) -> Result<Self, HookError> {
        let program = classifier.info()?.id();
        // Refused where it is there already; whatever else was wrong, the filter says it better.
        let _ = tc::qdisc_add_clsact(device);
        let options = options(place);
        let id = match add(classifier, device, direction, place) {
            Ok(id) => id,
            // A former agent's filter stands there: found by its handle and replaced.
            Err(_) => {
                let NlOptions {
                    priority, handle, ..
                } = options;
                let attach_type = direction.attach_type();
                let found =
                    SchedClassifierLink::attached(device, attach_type, priority, handle, None);
                // Dropping the link deletes the filter.
                drop(found);
                add(classifier, device, direction, place)?
            }
        };
        Ok(Self {
            link: Some(classifier.take_link(id)?),
            program,
            index,
            direction,
            place,
        })
    }

    /// Whether it stands; nothing where the kernel does not tell.
    pub(in crate::datapath) fn stands(&self) -> Option<bool> {
        let standing = standing(self.index, self.direction, self.place).ok()?;
        Some(standing == Some(self.program))
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        let link = self.link.take();
        // Dropping a link deletes what stands at its place, whoever put it there. A filter too many
        // does less harm than a successor without.
        if self.stands() != Some(true) {
            std::mem::forget(link);
        }
    }
}

fn options(place: &Place) -> NlOptions {
    NlOptions {
        priority: place.priority,
        handle: TcHandle::from(place.handle),
        classid: None,
    }
}

/// Refused where the handle stands already.
fn add(
    classifier: &mut SchedClassifier,
    device: &str,
    direction: Direction,
    place: &Place,
) -> Result<SchedClassifierLinkId, ProgramError> {
    classifier.attach_with_options(
        device,
        direction.attach_type(),
        TcAttachOptions::Netlink(options(place)),
    )
}

/// Id of the program whose filter stands at this place.
fn standing(index: u32, direction: Direction, place: &Place) -> io::Result<Option<u32>> {
    let mut found = None;
    each(index, direction, place.priority, &mut |handle, body| {
        if handle == place.handle {
            found = found.or(program(body).map(|(id, _)| id));
        }
    })?;
    Ok(found)
}

/// Every program that stands as a filter at this direction of a device, with the name that was given
/// to its filter.
pub(in crate::datapath) fn at(
    index: u32,
    direction: Direction,
) -> io::Result<Vec<(u32, Option<String>)>> {
    let mut found = Vec::new();
    let asked = each(index, direction, 0, &mut |_, body| {
        found.extend(program(body))
    });
    match asked {
        // No qdisc that filters could hang at.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Vec::new()),
        other => other.map(|()| found),
    }
}

/// Every filter at this direction of a device, of one priority or of all (0): its handle, and the
/// whole message.
fn each(
    index: u32,
    direction: Direction,
    priority: u16,
    take: &mut impl FnMut(u32, &[u8]),
) -> io::Result<()> {
    // Family and padding, then words: of the handle the kernel takes no notice in a dump.
    let words = [0, index, 0, direction.parent(), u32::from(priority) << 16];
    let body: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    dump(
        NETLINK_ROUTE,
        &request(GET_FILTER, &body),
        NEW_FILTER,
        &mut |body| {
            let handle = word(body, 8).ok_or_else(too_short)?;
            if word(body, 4) == Some(index) {
                take(handle, body);
            }
            Ok(())
        },
    )
}

/// Id of the program that a message tells of, and its name.
fn program(body: &[u8]) -> Option<(u32, Option<String>)> {
    let value = |bytes, wanted| {
        let mut all = attributes(bytes);
        all.find_map(|(kind, value)| (kind == wanted).then_some(value))
    };
    let options = value(body.get(MESSAGE..)?, OPTIONS)?;
    let name = value(options, PROGRAM_NAME).map(|name| {
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    });
    Some((word(value(options, PROGRAM_ID)?, 0)?, name))
}
