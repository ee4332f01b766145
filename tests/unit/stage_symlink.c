/* Which symbolic links stay inside a tree, against what the kernel says of the
 * same tree on disk. */
#include <sys/syscall.h>
#include <linux/openat2.h>

#include "io/cache/cache.h"
#include "tests/support/stage_fixture.h"

static const struct {
	const char *path, *target;
	bool inside;
} links[] = {
	{"abs", "/etc/passwd", false},
	{"up", "..", false},
	{"here", ".", true},
	{"d/root", "..", true},
	{"d/out", "../..", false},
	{"d/back", "../d/e/../../file", true},
	{"d/e/deep", "../../file", true},
	{"d/e/deeper", "../../../file", false},
	{"gone", "nowhere/file", true},
	{"gone_out", "nowhere/../../x", false},
	{"to_e", "d/e", true},
	/* by text inside, but to_e/.. is d, and d/../.. is outside */
	{"via", "to_e/../../../x", false},
	/* by text outside (x/../../y), by way of the link inside */
	{"d/via_in", "../to_e/../../file", true},
	{"self", "self", true},
	{"loop_a", "loop_b", true},
	{"loop_b", "d/../loop_a", true},
	{"slashes", "d//e///", true},
	{"by_abs", "abs", false},
	{"by_up", "up/src/file", false},
	{"through_file", "file/x", true},
};
#define LINKS (sizeof links / sizeof links[0])

/* 1 inside, 0 outside; what does not exist counts as inside. */
static int kernel_says(int root, const char *path)
{
	struct open_how how = {.flags = O_PATH, .resolve = RESOLVE_BENEATH};
	int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
	if (fd >= 0)
		close(fd);
	return fd >= 0 || errno != EXDEV;
}

static stage_entry *add(stage_manifest *m, const char *path, char type)
{
	stage_entry *e = manifest_add(m);
	e->path = manifest_join(m, "", path);
	e->type = type;
	return e;
}

int main(void)
{
	stage_manifest m = {.source = strdup("/src")};
	bench_begin();
	must(mkdir("src/d", 0755), "src/d");
	must(mkdir("src/d/e", 0755), "src/d/e");
	put("src/file", "x");
	must(chdir("src"), "src");
	int root = open(".", O_RDONLY | O_DIRECTORY);
	add(&m, "", STAGE_DIR);
	add(&m, "d", STAGE_DIR);
	add(&m, "d/e", STAGE_DIR);
	add(&m, "file", STAGE_FILE);
	for (size_t i = 0; i < LINKS; i++) {
		add(&m, links[i].path, STAGE_SYMLINK)->target = manifest_join(&m, "", links[i].target);
		must(symlink(links[i].target, links[i].path), links[i].path);
	}
	is_int(manifest_finish(&m, &why), 0, "a manifest by hand");
	errno = 0;
	bool kernel = kernel_says(root, "file") && !kernel_says(root, "up");
	for (size_t i = 0; i < LINKS; i++) {
		const stage_entry *e = manifest_find(&m, links[i].path, strlen(links[i].path));
		ok(e && symlink_inside(&m, e) == links[i].inside, "%s -> %s is %s", links[i].path, links[i].target,
		   links[i].inside ? "inside" : "outside");
		/* "gone_out" ends at "nowhere" for the kernel; staging looks further. */
		if (!kernel)
			skip("this kernel has no openat2()", "the kernel on %s", links[i].path);
		else if (strcmp(links[i].path, "gone_out"))
			is_int(kernel_says(root, links[i].path), links[i].inside, "the kernel agrees on %s",
			       links[i].path);
	}
	close(root);
	manifest_clear(&m);
	return done_testing();
}
