/* No room: seen before copying, or met in the middle; nothing half stays. In a
 * mount namespace of its own, the cache on a small tmpfs. */
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include "io/cache/cache.h"
#include "tests/support/stage_fixture.h"

#define MIB (1 << 20)

static void put_bytes(const char *path, size_t n)
{
	static char block[MIB];
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	memset(block, 'x', sizeof block);
	for (ssize_t w = 1; n && w > 0; n -= (size_t)w)
		w = write(fd, block, n < sizeof block ? n : sizeof block);
	close(fd);
}

/* Someone else fills the disk just when copying begins. */
static int fill_disk(void *ctx, const gradcomp_stage_progress *p)
{
	int *filled = ctx;
	if (p->phase == GRADCOMP_STAGE_COPY && !*filled) {
		struct statvfs fs;
		must(statvfs("cache", &fs), "statvfs");
		put_bytes("cache/other", fs.f_bavail * fs.f_frsize - 600000);
		*filled = 1;
	}
	return 0;
}

static unsigned long long left(void)
{
	struct statvfs fs = {0};
	must(statvfs("cache", &fs), "statvfs");
	return (unsigned long long)fs.f_bavail * fs.f_frsize;
}

static void space(void)
{
	char path[64];
	int filled = 0;
	for (int i = 0; i < 8; i++) {
		snprintf(path, sizeof path, "src/%d", i);
		put_bytes(path, MIB);
	}
	unsigned long long before = left();
	is_int(stage(), GRADCOMP_ERR_IO, "8 MiB into 4 MiB");
	like(why.text, "no space: needs 8.4 MB, 4.2 MB free on", "says how much is needed and how much there is");
	is_int(in_cache(""), 0, "nothing stays");
	is_int(stage_with(GRADCOMP_STAGE_DRY_RUN, NULL, NULL), GRADCOMP_ERR_IO, "a dry run says so too");

	must(system("rm src/3 src/4 src/5 src/6 src/7") ? -1 : 0, "rm");
	is_int(stage_with(0, fill_disk, &filled), GRADCOMP_ERR_IO, "the disk becomes full in the middle");
	like(why.text, "no space: the dataset needs 3.1 MB", "says how much is needed");
	is_int(in_cache(""), 0, "nothing stays");
	must(unlink("cache/other"), "other");
	ok(before - left() < 16384, "and its space is free again");
	is_int(stage(), 0, "with room again it works");

	put_bytes("src/more", MIB);
	is_int(stage(), GRADCOMP_ERR_IO, "a second version does not fit beside the first");
	is_int(in_cache(""), 1, "which stays");
}

static void inodes(void)
{
	char path[64];
	must(umount("cache"), "umount");
	must(mount("cache", "cache", "tmpfs", 0, "size=64m,nr_inodes=20,mode=755"), "mount");
	must(system("rm -r src; mkdir src") ? -1 : 0, "source");
	for (int i = 0; i < 40; i++) {
		snprintf(path, sizeof path, "src/%d", i);
		put(path, "");
	}
	is_int(stage(), GRADCOMP_ERR_IO, "40 files into 20 inodes");
	like(why.text, "no space: needs 41 inodes", "says how many");
	is_int(in_cache(""), 0, "nothing stays");
}

static void quota(void)
{
	stage_run run = {.where = "/cache/7", .bytes_total = 3200000000u};
	errno = EDQUOT;
	is_int(cache_write_failed(&run, "a\nb", &why), GRADCOMP_ERR_IO, "no quota");
	is_str(why.text,
	       "your disk quota is used up in /cache/7, writing a\\x0ab: the dataset needs 3.2 GB; remove "
	       "something "
	       "or set stage.cache_dir",
	       "says whose, where and how much");
}

int main(void)
{
	bench_begin();
	quota();
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("cache", "cache", "tmpfs", 0, "size=4m,mode=755") < 0) {
		skip("needs the right to mount", "a small disk: %s", strerror(errno));
		return done_testing();
	}
	space();
	inodes();
	must(umount("cache"), "umount");
	return done_testing();
}
