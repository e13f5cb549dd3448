//! Real layouts of kubelets and runtimes, and what only looks like them.

use super::*;

const UID: &str = "1f3a8e0c-5a0b-4a55-9d0c-0c3b6d7e8f90";
const SLICE: &str = "1f3a8e0c_5a0b_4a55_9d0c_0c3b6d7e8f90";
const KEY: PodKey = PodKey([0x1f3a_8e0c_5a0b_4a55, 0x9d0c_0c3b_6d7e_8f90]);
const CONTAINER: &str = "2b4f0e66bd4ab0a52f40c1a44ad3ea5cd8dfd9cb5f0d4ba0d5f4c9e9a1b2c3d4";
const HOST: &str = "0::/init.scope\n";

/// Of a process whose unified hierarchy has this path, for a broker in the host's namespaces.
fn of_path(path: &str) -> Option<PodKey> {
    of(None, HOST, &format!("0::{path}\n"))
}

fn of(place: Option<&str>, first: &str, text: &str) -> Option<PodKey> {
    Pods::seen_from(place, first.into()).of_text(text.as_bytes()).ok()
}

/// In this text, `P` is the pod's UID, `S` the same as slices have it, `C` the container's id.
fn filled(text: &str) -> String {
    text.replace('P', UID).replace('S', SLICE).replace('C', CONTAINER)
}

#[test]
fn of_text_when_the_kubelet_and_a_runtime_made_the_cgroups_then_their_pod() {
    for path in [
        // The driver systemd: containerd, CRI-O, and its containers with a cgroup in theirs.
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podS.slice/cri-containerd-C.scope",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podS.slice/crio-C.scope",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podS.slice/crio-C.scope/container",
        "/kubepods.slice/kubepods-podS.slice/cri-containerd-C.scope",
        "/kubepods.slice/kubepods-podS.slice/docker-C.scope/init",
        // The driver cgroupfs.
        "/kubepods/burstable/podP/C",
        "/kubepods/besteffort/podP/crio-C",
        "/kubepods/podP/C",
        // A process in the pod's own cgroup, as a sandbox's may be.
        "/kubepods/podP",
        "/kubepods.slice/kubepods-podS.slice",
        // A CI runner in the pod, Docker in it, and a cluster of kind in it: the outermost counts.
        "/kubepods/burstable/podP/C/docker/C",
        "/kubepods.slice/kubepods-podS.slice/cri-containerd-C.scope/kubelet/kubepods/besteffort/podx/C",
        "/kubepods/podP/C/kubepods/pod00000000-0000-0000-0000-000000000001/C",
        "/kubepods/podP/kubepods.slice/kubepods-pod00000000_0000_0000_0000_000000000001.slice",
        // Names that a container has made for itself.
        "/kubepods/podP/C/../podx",
        "/kubepods/podP/C/a:b::c (deleted)",
        "/kubepods/podP/C/0::/kubepods/podx",
        "/kubepods/podP/C (deleted)",
    ] {
        assert_eq!(of_path(&filled(path)), Some(KEY), "{path}");
    }
}

#[test]
fn of_text_when_it_is_no_pod_or_only_named_like_one_then_none() {
    for path in [
        "/",
        "/init.scope",
        "/system.slice/kubelet.service",
        "/user.slice/user-1000.slice/session-3.scope",
        // The kubelet's own directories.
        "/kubepods",
        "/kubepods.slice/kubepods-burstable.slice",
        "/kubepods/burstable",
        "/kubepods/burstable/C",
        // Of a user that systemd has given a slice to.
        "/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-podS.slice/x.scope",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/kubepods-podS.slice",
        "/user.slice/kubepods/podP/C",
        "/user.slice/user-1000.slice/user@1000.service/user.slice/docker-C.scope/kubepods/podP",
        // A node of kind, seen from its host.
        "/docker/C/kubelet/kubepods/burstable/podP/C",
        "/system.slice/docker-C.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podS.slice",
        // Near to what a kubelet makes, and made by none.
        "/kubepods.slice/kubepods-podP.slice",
        "/kubepods.slice/podP/C",
        "/kubepods/kubepods-podS.slice/C",
        "/kubepods.slice/kubepods-burstable-podS.slice/C",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-podS.slice",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-podS.slice",
        "/kubepods.slice/kubepods-guaranteed.slice/kubepods-guaranteed-podS.slice",
        "/kubepods/guaranteed/podP/C",
        "/kubepods/burstable/burstable/podP",
        "/kubepods/besteffort-podP/C",
        "/kubepods-podS.slice/C",
        "/podP/C",
        "/Kubepods/podP/C",
        "/xkubepods/podP/C",
        // A name that is no pod's uid.
        "/kubepods/pod/C",
        "/kubepods/pod../C",
        "/kubepods/podP (deleted)",
        "/kubepods/pod\\x2dP/C",
        "/kubepods/podP\u{e9}/C",
        "/kubepods (deleted)/podP/C",
        "/kubepods/pod00000000-0000-0000-0000-000000000000/C",
        "/./kubepods/podP/C",
        "/x/../kubepods/podP/C",
        "/kubepods/./podP/C",
        "/kubepods/burstable/../podP/C",
        // Above the broker's own root there is nothing on a host.
        "/../kubepods/podP/C",
        "/../podP/C",
        "",
        "kubepods/podP/C",
    ] {
        assert_eq!(of_path(&filled(path)), None, "{path}");
    }
}

#[test]
fn of_text_when_a_line_is_torn_or_a_name_has_a_newline_then_none() {
    for text in [
        "",
        "\n",
        "0::/kubepods/podP/C",
        "0::/kubepods/podP/C\n\n",
        "0::/kubepods/podP/C\nnonsense\n",
        "0:/kubepods/podP/C\n",
        "0::/kubepods/podP/C\0\n0::\n",
        // A name with a newline, which the kernel takes from nobody.
        "0::/user.slice/x\n0::/kubepods/podP/C\n",
        "0::/kubepods/podP/C\n0::/user.slice\n",
    ] {
        assert_eq!(of(None, HOST, &filled(text)), None, "{text:?}");
    }
    let bytes = [b"0::/kubepods/pod".as_slice(), UID.as_bytes(), b"/\xff\n"].concat();
    assert_eq!(Pods::seen_from(None, HOST.into()).of_text(&bytes), Err(TORN));
}

#[test]
fn of_text_when_it_is_of_cgroup_v1_then_all_hierarchies_have_to_agree() {
    let pod = "/kubepods/burstable/podP/C";
    let other = "/kubepods/burstable/pod00000000-0000-0000-0000-000000000001/C";
    for (text, is_pod) in [
        (format!("2:memory:{pod}\n1:name=systemd:{pod}\n"), true),
        (format!("2:memory:{pod}\n1:name=systemd:{pod}\n0::{pod}\n"), true),
        (format!("2:memory:{pod}\n1:name=systemd:{pod}\n0::/\n"), true),
        (
            format!("2:memory:{pod}\n1:cpu,cpuacct:{pod}\n0::/system.slice/containerd.service\n"),
            true,
        ),
        // Drivers may be mixed: it is the same pod.
        (format!("2:memory:{pod}\n1:cpu:/kubepods.slice/kubepods-podS.slice/x.scope\n"), true),
        // No runtime uses these.
        (format!("13:misc:/\n12:rdma:/\n2:memory:{pod}\n"), true),
        (format!("13:misc:/user.slice\n2:memory:{pod}\n"), false),
        (format!("2:memory:{pod}\n1:name=systemd:/\n"), false),
        (format!("2:memory:/\n1:name=systemd:{pod}\n"), false),
        (format!("2:memory:{pod}\n1:name=systemd:/user.slice/user-1000.slice\n"), false),
        (format!("2:memory:{pod}\n1:name=systemd:{other}\n"), false),
        (format!("2:memory:{pod}\n1:name=systemd:{pod}\n0::{other}\n"), false),
        (format!("2:memory:/\n1:name=systemd:/\n0::{pod}\n"), false),
    ] {
        let expected = is_pod.then_some(KEY);
        assert_eq!(of(None, "1:name=systemd:/\n0::/\n", &filled(&text)), expected, "{text}");
    }
}

#[test]
fn of_text_when_there_is_no_pod_then_it_says_what_it_saw() {
    let why = |text: &str| Pods::seen_from(None, HOST.into()).of_text(filled(text).as_bytes());
    assert_eq!(why("0::/user.slice\n"), Err(ELSEWHERE));
    assert_eq!(why("0::/user.slice"), Err(TORN));
    assert_eq!(why("2:memory:/\n1:name=systemd:/kubepods/podP\n"), Err(DIFFERENT));
    assert_eq!(why("2:memory:/\n1:name=systemd:/\n"), Err(ELSEWHERE));
}

#[test]
fn of_text_when_the_broker_is_in_a_pod_itself_then_the_pods_beside_its_own() {
    let in_class = "0::/../../../../init.scope\n";
    let in_none = "0::/../../../init.scope\n";
    for (first, path, is_pod) in [
        (in_class, "/../../podP/C", true),
        (in_class, "/../../kubepods-burstable-podS.slice/cri-containerd-C.scope", true),
        (
            in_class,
            "/../../../kubepods-besteffort.slice/kubepods-besteffort-podS.slice/x.scope",
            true,
        ),
        (in_class, "/../../../besteffort/podP/C", true),
        (in_class, "/../../../podP/C", true),
        (in_class, "/../../../kubepods-podS.slice/x.scope", true),
        (in_class, "/../../../../kubepods.slice/kubepods-podS.slice/x.scope", true),
        (in_none, "/../../podP/C", true),
        (in_none, "/../../burstable/podP/C", true),
        (in_none, "/../../kubepods-burstable.slice/kubepods-burstable-podS.slice/x.scope", true),
        // The host's.
        (in_class, "/../../../../init.scope", false),
        (in_class, "/../../../../user.slice/user-1000.slice/kubepods/podP", false),
        (in_class, "/../../../../user.slice/kubepods-podS.slice/x.scope", false),
        (in_class, "/../../../../system.slice/podP/C", false),
        (in_class, "/../../../../podP/C", false),
        // The broker's own pod, in which nobody is a client.
        (in_class, "/", false),
        (in_class, "/podP/C", false),
        (in_class, "/../C", false),
        (in_class, "/../podP/C", false),
        // More than there is.
        (in_class, "/../../../../../kubepods/podP/C", false),
    ] {
        let text = filled(&format!("0::{path}\n"));
        assert_eq!(of(None, first, &text), is_pod.then_some(KEY), "{first}{path}");
    }
}

#[test]
fn of_text_when_the_place_is_configured_then_there_and_nowhere_else() {
    let kind = "/kubelet.slice/kubelet-kubepods.slice";
    let slice = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podS.slice/x.scope";
    for (place, path, is_pod) in [
        (kind, slice, true),
        (kind, "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podS.slice", true),
        (kind, "/kubepods.slice/kubepods-podS.slice", false),
        (kind, "/kubelet.slice/kubelet-kubepods.slice/kubepods-podS.slice", false),
        ("/kubelet/kubepods", "/kubelet/kubepods/besteffort/podP/C", true),
        ("/kubelet/kubepods", "/kubepods/besteffort/podP/C", false),
        ("/docker/C/kubelet/kubepods", "/docker/C/kubelet/kubepods/podP/C", true),
    ] {
        let found = of(Some(&filled(place)), HOST, &filled(&format!("0::{path}\n")));
        assert_eq!(found, is_pod.then_some(KEY), "{place} {path}");
    }
}

#[test]
fn key_when_the_uid_is_no_uuid_then_its_hash_the_same_for_ever() {
    assert_eq!(key("1f3a8e0c5a0b4a559d0c0c3b6d7e8f90"), Some(KEY), "of a static pod");
    let named = key("web-0").expect("a UID that a manifest names");
    assert_eq!(Some(named), key("web-0"));
    assert_ne!(Some(named), key("web-1"));
    assert_eq!((key(""), key("a/b"), key("a b")), (None, None, None));
}

#[test]
fn directories_when_seen_then_all_above_pods_and_none_from_within_a_container() {
    let of = |first: &str| {
        let all = Pods::seen_from(Some("/a.slice/a-b.slice"), first.into()).directories();
        all.iter().map(|it| it.to_str().expect("plain").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        of(HOST),
        [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/a.slice",
            "/sys/fs/cgroup/a.slice/a-b.slice",
            "/sys/fs/cgroup/a.slice/a-b.slice/a-b-besteffort.slice",
            "/sys/fs/cgroup/a.slice/a-b.slice/a-b-burstable.slice",
        ]
    );
    assert_eq!(of("0::/../../init.scope\n"), Vec::<String>::new());
    let v1 = of("2:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n");
    assert_eq!(v1.len(), 15);
    for mount in ["cpu,cpuacct", "systemd", "unified"] {
        assert!(v1.contains(&format!("/sys/fs/cgroup/{mount}/a.slice")), "{v1:?}");
    }
}
