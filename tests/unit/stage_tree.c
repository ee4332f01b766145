/* Checks what a copy keeps of its source. */
#include <time.h>

#include "tests/support/stage_fixture.h"

#define DEEP 800 /* levels; with the path of the copy it is longer than PATH_MAX */
#define WIDE 5000

static const char *const odd_names[] = {"new\nline",          "tab\tand space ", "-rf",          "\\x41",
                                        "\xff\xfe not utf-8", "日本語",          "*?[a]$(x)`y`", "\001\177",
                                        "..hidden..",         "#comment",        "'\""};
#define ODD (sizeof odd_names / sizeof odd_names[0])

static void make_deep(const char *top, int text)
{
	int fd = open(top, O_RDONLY | O_DIRECTORY);
	for (int i = 0; i < DEEP && fd >= 0; i++) {
		if (text)
			must(mkdirat(fd, "deep", 0755), "deep");
		int next = openat(fd, "deep", O_RDONLY | O_DIRECTORY);
		close(fd);
		fd = next;
	}
	int f = fd < 0 ? -1 : openat(fd, "bottom", text ? O_WRONLY | O_CREAT : O_RDONLY, 0644);
	char buf[8] = "";
	if (text)
		must(f < 0 ? -1 : (int)write(f, "bottom", 6), "bottom");
	else
		ok(f >= 0 && read(f, buf, sizeof buf) == 6 && !memcmp(buf, "bottom", 6), "a file %d levels down", DEEP);
	close(f);
	close(fd);
}

static void make_tree(void)
{
	char name[300], text[32];
	struct timespec times[2] = {{.tv_sec = 1000000000, .tv_nsec = 123456789}, {.tv_sec = 999999999, .tv_nsec = 42}};
	must(mkdir("src/wide", 0755), "wide");
	must(mkdir("src/odd", 0755), "odd");
	must(mkdir("src/empty", 0755), "empty");
	must(mkdir("src/empty/below", 0711), "below");
	must(mkdir("src/closed", 0755), "closed");
	for (int i = 0; i < WIDE; i++) {
		snprintf(name, sizeof name, "src/wide/%d", i);
		snprintf(text, sizeof text, "file %d\n", i);
		put(name, text);
	}
	for (size_t i = 0; i < ODD; i++) {
		snprintf(name, sizeof name, "src/odd/%s", odd_names[i]);
		put(name, odd_names[i]);
	}
	put("src/none", "");
	put("src/closed/script", "#!/bin/sh\n");
	must(chmod("src/closed/script", 04750), "mode");
	must(utimensat(AT_FDCWD, "src/closed/script", times, 0), "times");
	must(chmod("src/closed", 0555), "mode");
	put("src/z", "one inode");
	must(link("src/z", "src/a"), "link");
	must(link("src/z", "src/empty/m"), "link");
	put("elsewhere", "x");
	must(link("elsewhere", "src/single"), "link");
	must(symlink("../z", "src/empty/link"), "symlink");
	must(symlink("nowhere", "src/dangling"), "symlink");
	int fd = open("src/sparse", O_WRONLY | O_CREAT, 0644);
	must(ftruncate(fd, 64 << 20), "sparse");
	must((int)pwrite(fd, "middle", 6, 33333333), "sparse");
	close(fd);
	put("src/hole", "");
	must(truncate("src/hole", 10 << 20), "hole");
	make_deep("src", 1);
}

static void modes_and_links(void)
{
	struct stat st = copied_stat("closed/script");
	is_int(st.st_mode & 07777, 0750, "permission bits, without set-id");
	ok(st.st_mtim.tv_sec == 999999999 && st.st_mtim.tv_nsec == 42, "time of a file");
	is_int(copied_stat("closed").st_mode & 07777, 0555, "a directory that cannot be written");
	is_int(copied_stat("empty/below").st_mode & 07777, 0711, "an empty directory");
	struct stat a = copied_stat("a"), m = copied_stat("empty/m"), z = copied_stat("z");
	ok(a.st_ino == z.st_ino && a.st_ino == m.st_ino && z.st_nlink == 3, "hard links are links");
	is_int(copied_stat("single").st_nlink, 1, "a link to outside of the tree is a file");
	char target[64] = "", path[8192];
	snprintf(path, sizeof path, "%s/empty/link", got.path);
	ssize_t n = readlink(path, target, sizeof target - 1);
	ok(n == 4 && !strcmp(target, "../z"), "symbolic link");
	ok(S_ISLNK(copied_stat("dangling").st_mode), "dangling symbolic link");
	struct stat s = copied_stat("sparse"), h = copied_stat("hole");
	ok(s.st_size == 64 << 20 && s.st_blocks * 512 < 4 << 20, "a sparse file takes %ld kB of 64 MiB",
	   (long)s.st_blocks / 2);
	ok(h.st_size == 10 << 20 && h.st_blocks < 128, "a file of nothing but a hole");
	snprintf(path, sizeof path, "cd '%s' && cmp -s sparse %s/src/sparse && cmp -s hole %s/src/hole", got.path,
	         bench_dir, bench_dir);
	is_int(system(path), 0, "and they read the same");
}

static void names(void)
{
	char name[300], text[32];
	size_t wrong = 0;
	for (size_t i = 0; i < ODD; i++) {
		snprintf(name, sizeof name, "odd/%s", odd_names[i]);
		if (!ok(!strcmp(copied(name), odd_names[i]), "odd name %zu", i))
			printf("# %s\n", gradcomp_printable(odd_names[i], name, sizeof name));
	}
	for (int i = 0; i < WIDE; i++) {
		snprintf(name, sizeof name, "wide/%d", i);
		snprintf(text, sizeof text, "file %d\n", i);
		wrong += strcmp(copied(name), text) != 0;
	}
	is_int(wrong, 0, "of %d small files", WIDE);
}

static void keys(void)
{
	char first[65], first_path[4096];
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 5}};
	strcpy(first, got.key);
	strcpy(first_path, got.path);
	is_int(stage(), 0, "again");
	ok(got.cached && !strcmp(got.path, first_path), "is a hit");
	is_int(stage_with(GRADCOMP_STAGE_VERIFY, NULL, NULL), 0, "verified");
	ok(got.cached, "is a hit");
	must(utimensat(AT_FDCWD, "src/empty", times, 0), "times");
	is_int(stage(), 0, "with another time of a directory");
	ok(got.cached, "is a hit: all it holds is the same");
	must(utimensat(AT_FDCWD, "src/none", times, 0), "times");
	is_int(stage_with(GRADCOMP_STAGE_DRY_RUN, NULL, NULL), 0, "with another time of a file");
	ok(!got.cached && strcmp(got.key, first), "is another key");
	must(chmod("src/none", 0600), "mode");
	char second[65];
	strcpy(second, got.key);
	is_int(stage_with(GRADCOMP_STAGE_DRY_RUN, NULL, NULL), 0, "with another mode");
	ok(strcmp(got.key, second), "is another key");
	strcpy(second, got.key);
	must(rename("src/none", "src/null"), "rename");
	is_int(stage_with(GRADCOMP_STAGE_DRY_RUN, NULL, NULL), 0, "with another name");
	ok(strcmp(got.key, second), "is another key");
}

int main(void)
{
	bench_begin();
	make_tree();
	if (!is_int(stage(), 0, "staged"))
		printf("# %s\n", why.text);
	is_int(got.cached, 0, "not from the cache");
	is_int(got.files, WIDE + ODD + 9, "files, a hard link counted");
	ok(got.bytes > (74u << 20) && got.bytes < (75u << 20), "bytes: %llu", (unsigned long long)got.bytes);
	is_int(in_cache(".tmp") + in_cache(".lock"), 0, "no working files stay");
	modes_and_links();
	names();
	make_deep(got.path, 0);
	keys();
	return done_testing();
}
