//! Which pod of Kubernetes a process is in: by the cgroups that the kubelet makes for pods. Must
//! never take a pod from a name that anybody but root can make: not from one below a pod's, nor
//! from one in a place that is not the kubelet's.

use fdbroker_core::PodKey;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::ffi::CString;
use std::hash::Hasher;

/// Where kubelets have the cgroups of pods by default, as systemd and as cgroupfs name them.
const PLACES: [&str; 2] = ["/kubepods.slice", "/kubepods"];

/// Where hierarchies are mounted (systemd's file-hierarchy(7)).
const MOUNTS: &str = "/sys/fs/cgroup";

/// The classes of pods that have a cgroup of their own; the third one, `guaranteed`, has none.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// Of a process whose cgroups have not been read.
pub const UNREAD: &str = "its /proc/PID/cgroup cannot be read (the broker needs hostPID), or a directory above those of pods is not root's alone";
const TORN: &str = "its /proc/PID/cgroup is not as the kernel writes it";
const ELSEWHERE: &str =
    "its cgroup is none of a pod where the kubelet has these (pods_cgroup names another place)";
const DIFFERENT: &str = "its hierarchies of cgroup v1 do not all name the same pod";

/// Hierarchies of cgroup v1 in which runtimes leave all processes where they are.
const UNUSED: [&str; 2] = ["misc", "rdma"];

/// The first process of the host: what its cgroups are called here.
const FIRST_PROCESS: &str = "/proc/1/cgroup";

/// Where the cgroups of pods are.
#[derive(Debug, Default)]
pub struct Pods {
    /// The paths of the cgroups in which those of all pods are, part by part.
    places: Vec<Vec<String>>,
    /// The lines about the host's first process: a broker in a container sees other cgroups from
    /// its own, and `..` says how far above it these begin.
    first: String,
}

/// A line of /proc/PID/cgroup (cgroups(7)).
#[derive(Clone, Copy)]
struct Line<'a> {
    hierarchy: &'a str,
    controllers: &'a str,
    path: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers) = (fields.next()?, fields.next()?);
        Some(Line { hierarchy, controllers, path: fields.next()?.strip_prefix('/')? })
    }

    fn is_unified(self) -> bool {
        self.hierarchy == "0"
    }

    /// Its parts: how often it goes up, and all of them.
    fn parts(self) -> (usize, Vec<&'a str>) {
        let parts: Vec<&str> = self.path.split('/').filter(|part| !part.is_empty()).collect();
        (parts.iter().take_while(|part| **part == "..").count(), parts)
    }
}

/// All lines; `None`: something else is there, or the text was cut.
fn lines(text: &str) -> Option<Vec<Line<'_>>> {
    text.strip_suffix('\n')?.split('\n').map(Line::parse).collect()
}

impl Pods {
    /// With the pods of a kubelet in this cgroup; `None`: where kubelets have them by default.
    pub fn new(place: Option<&str>) -> Self {
        let first = std::fs::read_to_string(FIRST_PROCESS).unwrap_or_default();
        Self::seen_from(place, first)
    }

    /// Where the host's first process has these cgroups.
    fn seen_from(place: Option<&str>, first: String) -> Self {
        let parts = |place: &str| place.trim_matches('/').split('/').map(String::from).collect();
        let places = place.as_ref().map_or(&PLACES[..], std::slice::from_ref);
        Pods { places: places.iter().map(|place| parts(place)).collect(), first }
    }

    /// The pod in the text of /proc/PID/cgroup. Of cgroup v1 all hierarchies that runtimes use have
    /// to say the same; the unified one beside them may say nothing.
    ///
    /// # Errors
    /// Why there is none.
    pub fn of_text(&self, text: &[u8]) -> Result<PodKey, &'static str> {
        let all = std::str::from_utf8(text).ok().and_then(lines).ok_or(TORN)?;
        let is_v1 = all.iter().any(|line| !line.is_unified());
        let says_nothing = |line: &&Line<'_>| {
            let is_unused = UNUSED.contains(&line.controllers) && line.path.is_empty();
            is_v1 && (is_unused || (line.is_unified() && self.of_line(**line).is_none()))
        };
        let mut pods =
            all.iter().filter(|line| !says_nothing(line)).map(|line| self.of_line(*line));
        let pod = pods.next().flatten();
        match (pods.all(|other| other == pod), pod) {
            (true, pod) => pod.ok_or(ELSEWHERE),
            (false, _) => Err(DIFFERENT),
        }
    }

    fn of_line(&self, line: Line<'_>) -> Option<PodKey> {
        let (up, parts) = line.parts();
        // What lies above is not seen: the broker's own cgroup and this one are below it.
        let hidden = self.depth(line.hierarchy).checked_sub(up)?;
        let part = |at: usize| match at.checked_sub(hidden) {
            None => Part::Hidden,
            Some(at) => parts.get(up + at).map_or(Part::None, |part| Part::Seen(part)),
        };
        self.places.iter().find_map(|place| of_place(place, &part))
    }

    /// How far below the host's root the broker's own cgroup is, where it sees that as the root.
    fn depth(&self, hierarchy: &str) -> usize {
        let all = lines(&self.first).unwrap_or_default();
        let its = all.iter().find(|line| line.hierarchy == hierarchy);
        its.map_or(0, |line| line.parts().0)
    }

    /// The directories above those of pods. A broker that sees its own cgroup as the root sees none
    /// of them: they are the kubelet's, as the broker's own pod is.
    pub fn directories(&self) -> Vec<CString> {
        let all = lines(&self.first).unwrap_or_default();
        let is_v1 = all.iter().any(|line| !line.is_unified());
        let seen = all.iter().filter(|line| line.parts().0 == 0);
        let mounts = seen.map(|line| match line.controllers.strip_prefix("name=") {
            _ if !is_v1 => MOUNTS.to_owned(),
            _ if line.is_unified() => format!("{MOUNTS}/unified"),
            name => format!("{MOUNTS}/{}", name.unwrap_or(line.controllers)),
        });
        let paths =
            mounts.flat_map(|mount| self.places.iter().flat_map(move |it| above(&mount, it)));
        let mut all: Vec<CString> = paths.filter_map(|path| CString::new(path).ok()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// One of a path from the host's root on.
enum Part<'a> {
    /// The broker's own path has it, too, and only that.
    Hidden,
    Seen(&'a str),
    None,
}

impl Part<'_> {
    fn may_be(&self, name: &str) -> bool {
        match self {
            Part::Hidden => true,
            Part::Seen(part) => *part == name,
            Part::None => false,
        }
    }
}

/// The pod of a path that leads through this place. The kubelet names pods so (its
/// pkg/kubelet/cm): `podUID` and `CLASS/podUID`, or where systemd manages them, by its names of
/// slices, `PLACE-podUID.slice` and `PLACE-CLASS.slice/PLACE-CLASS-podUID.slice`.
fn of_place<'p>(place: &[String], part: &impl Fn(usize) -> Part<'p>) -> Option<PodKey> {
    let is_there = place.iter().enumerate().all(|(at, name)| part(at).may_be(name));
    if !is_there {
        return None;
    }
    let stem = place.last()?.strip_suffix(".slice");
    let pod = |at: usize, class: Option<&str>| {
        let Part::Seen(name) = part(at) else { return None };
        let uid = match stem {
            None => name.strip_prefix("pod")?.to_owned(),
            Some(stem) => {
                let name = name.strip_suffix(".slice")?.strip_prefix(stem)?;
                let name = class.map_or(Some(name), |it| name.strip_prefix('-')?.strip_prefix(it));
                // A dash in the name of a slice is a step down.
                let uid = name?.strip_prefix("-pod")?;
                (!uid.contains('-')).then(|| uid.replace('_', "-"))?
            }
        };
        key(&uid)
    };
    let at = place.len();
    let of_class = |class: &str| {
        let directory = stem.map_or(class.to_owned(), |stem| format!("{stem}-{class}.slice"));
        part(at).may_be(&directory).then(|| pod(at + 1, Some(class))).flatten()
    };
    pod(at, None).or_else(|| CLASSES.iter().find_map(|class| of_class(class)))
}

/// The key of a pod by its UID: a UUID as it is, or 16 bytes of another one's hash, the same in
/// every version of the broker.
fn key(uid: &str) -> Option<PodKey> {
    let is_uid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if uid.is_empty() || !uid.bytes().all(is_uid) {
        return None;
    }
    let digits = uid.replace('-', "");
    let number = match u128::from_str_radix(&digits, 16) {
        Ok(number) if digits.len() == 32 => number,
        _ => {
            let mut hasher = SipHasher24::new();
            hasher.write(uid.as_bytes());
            hasher.finish128().as_u128()
        }
    };
    let (high, low) = (number >> 64, number << 64 >> 64);
    let halves = [high, low].map(|half| u64::try_from(half).expect("64 bits"));
    Some(PodKey(halves)).filter(|key| *key != PodKey::NONE)
}

/// The directories on the way to this place, and those of the classes in it.
fn above(mount: &str, place: &[String]) -> Vec<String> {
    let mut path = mount.to_owned();
    let mut all = vec![path.clone()];
    for part in place {
        path = format!("{path}/{part}");
        all.push(path.clone());
    }
    let stem = place.last().and_then(|it| it.strip_suffix(".slice"));
    let directory =
        |class: &str| stem.map_or(class.to_owned(), |stem| format!("{stem}-{class}.slice"));
    all.extend(CLASSES.map(|class: &str| format!("{path}/{}", directory(class))));
    all
}

#[cfg(test)]
#[path = "../../tests/unit/pods.rs"]
mod tests;
