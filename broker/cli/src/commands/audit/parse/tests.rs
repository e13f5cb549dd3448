//! The lines of /proc that audit reads, and forged ones.

use super::*;

#[test]
fn status_when_a_process_then_who_it_is_and_none_for_a_kernel_thread() {
    let text =
        "Name:\tapp\x1b x\nState:\tT (stopped)\nPPid:\t7\nUid:\t1000\t0\t0\t0\nVmSize:\t10 kB\n";
    let process = status(text).expect("a process");
    let said = (process.command.as_str(), process.state, process.parent, process.uid);
    assert_eq!(said, ("app? x", 'T', 7, 1000));
    let thread = "Name:\tkworker\nState:\tI (idle)\nPPid:\t2\nUid:\t0\t0\t0\t0\n";
    assert_eq!(status(thread), None);
    assert!(status(&thread.replace("I (idle)", "Z (zombie)")).is_some());
}

#[test]
fn memory_when_memfd_dma_buf_or_neither_then_told_apart() {
    let common = "pos:\t0\nflags:\t02\nmnt_id:\t7\nino:\t5\n";
    let found = |text: &str| memory(text, 7).map(|memory| (memory.kind, memory.references));
    assert_eq!(found(common), Some((MemoryKind::Memfd, None)));
    assert_eq!(found(&common.replace('7', "8")), None);
    let dma_buf =
        format!("{common}size:\t4096\ncount:\t3\nexp_name:\tudmabuf\nname:\tx\ncount:\t9\n");
    assert_eq!(found(&dma_buf), Some((MemoryKind::DmaBuf, Some(3))));
    let forged = common.replace('7', "8") + "name:\tx\nexp_name:\tx\n";
    assert_eq!(found(&forged), None);
}

#[test]
fn mapping_when_memfd_of_the_kernels_own_mount_or_dma_buf_then_its_key_and_size() {
    let line = "7f40f07af000-7f40f07b1000 rw-s 00000000 00:01 45818     /memfd:x (deleted)\n";
    let key = MemoryKey { kind: MemoryKind::Memfd, number: 45818 };
    assert_eq!(mapping(line, "00:01"), Some((key, 8192)));
    assert_eq!(mapping(line, "00:02"), None);
    let key = MemoryKey { kind: MemoryKind::DmaBuf, number: 45818 };
    assert_eq!(mapping(&line.replace("memfd", "dmabuf"), "00:02"), Some((key, 8192)));
    for line in ["", "7f-80 r--p 0 00:01 4", "7f-80 r--p 0 00:01 4 /dev/zero (deleted)"] {
        assert_eq!(mapping(line, "00:01"), None);
    }
}

#[test]
fn field_when_twice_then_the_first() {
    assert_eq!(field("ino:\t5\nino:\t6\n", "ino"), Some(5));
    assert_eq!(field("inode:\t5\n", "ino"), None);
}

#[test]
fn ring_when_files_and_buffers_are_registered_then_memory_is_counted_apart() {
    let text = "SqThread:\t-1\nUserFiles:\t3\n    0: /memfd:x\\040y (deleted)\n    1: /dev/null\n    2: /dmabuf:\n\
                UserBufs:\t2\n    0: 0x7f00/4096\n    1: <none>\nPollList:\n  op=6, task_works=0\n";
    assert_eq!(ring(text, 7), Ring { fd: 7, files: 2, buffers: 1 });
    let older = "UserFiles:\t3\n    0: memfd:x\n    1: dmabuf\n    2: null\nUserBufs:\t0\n";
    assert_eq!(ring(older, 7), Ring { fd: 7, files: 2, buffers: 0 });
    let empty = "UserFiles:\t0\nUserBufs:\t0\nPollList:\n    0: /memfd:x\n";
    assert_eq!(ring(empty, 7), Ring { fd: 7, files: 0, buffers: 0 });
}

#[test]
fn buffer_when_a_line_of_a_dma_buf_then_what_it_says_and_none_else() {
    let line = "00065536\t00000002\t00080007\t00000003\tudmabuf\t00000047\tname\n";
    let expected =
        Buffer { inode: 47, size_bytes: 65536, references: 3, exporter: "udmabuf".into() };
    assert_eq!(buffer(line), Some(expected));
    let others = [
        "",
        "\nDma-buf Objects:\n",
        "\tAttached Devices:\n",
        "size\tflags\tmode\tcount\texp\tino\tname\n",
    ];
    assert_eq!(others.map(buffer), [None, None, None, None]);
}
