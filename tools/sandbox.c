/* A seccomp filter for what parses answers of file servers and of other nodes. */
#include "tools/sandbox.h"

#ifdef HAVE_SECCOMP
#include <errno.h>
#include <seccomp.h>
#include <stddef.h>

/* A list of what is denied, since libraries and the C library change what they call. */
static const char *const denied[] = {
	/* other programs and processes */
	"execve",
	"execveat",
	"ptrace",
	"process_vm_readv",
	"process_vm_writev",
	"process_madvise",
	"pidfd_getfd",
	"kcmp",
	"personality",
	/* other identities */
	"setuid",
	"setgid",
	"setreuid",
	"setregid",
	"setresuid",
	"setresgid",
	"setgroups",
	"setfsuid",
	"setfsgid",
	"capset",
	"add_key",
	"request_key",
	"keyctl",
	/* other views of the machine */
	"mount",
	"umount2",
	"pivot_root",
	"chroot",
	"setns",
	"unshare",
	"open_tree",
	"move_mount",
	"fsopen",
	"fsconfig",
	"fsmount",
	"fspick",
	"mount_setattr",
	"open_by_handle_at",
	"mknod",
	"mknodat",
	/* the kernel */
	"bpf",
	"perf_event_open",
	"userfaultfd",
	"io_uring_setup",
	"io_uring_enter",
	"io_uring_register",
	"init_module",
	"finit_module",
	"delete_module",
	"kexec_load",
	"kexec_file_load",
	"iopl",
	"ioperm",
	"modify_ldt",
	"reboot",
	"swapon",
	"swapoff",
	"acct",
	"quotactl",
	"syslog",
	"settimeofday",
	"clock_settime",
	"adjtimex",
	"clock_adjtime",
	"sethostname",
	"setdomainname",
};

void sandbox_enter(void)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
	int failed = !filter;
	for (size_t i = 0; !failed && i < sizeof denied / sizeof denied[0]; i++) {
		int call = seccomp_syscall_resolve_name(denied[i]);

		/* A libseccomp may not know it, an architecture may not have it. */
		if (call != __NR_SCMP_ERROR)
			failed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), call, 0);
	}
	/* Millions of calls pass it: a tree, and no slower loads on old kernels. Either may be unknown. */
	if (!failed) {
		(void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
		(void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
		(void)seccomp_load(filter);
	}
	seccomp_release(filter);
}
#else
void sandbox_enter(void)
{
}
#endif
