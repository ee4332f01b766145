/* A folder tree as samples: order, labels, suffixes, hidden names, symbolic links,
 * files that change. */
#include "io/format/samples_internal.h"
#include "tests/support/samples_fixture.h"
#include "tests/support/tar_writer.h"

#include <sys/wait.h>

static void order(void)
{
	gradcomp_samples *s;
	must(mkdir("t", 0755), "mkdir");
	shows("t", 0, NULL, "", "an empty directory has no samples");
	must(mkdir("t/a", 0755), "mkdir");
	must(mkdir("t/a-b", 0755), "mkdir");
	must(mkdir("t/empty", 0755), "mkdir");
	must(mkdir("t/b", 0755), "mkdir");
	must(mkdir("t/b/deep", 0755), "mkdir");
	must(mkdir("t/.git", 0755), "mkdir");
	put("t/a/2.jpg", "a2");
	put("t/a/10.JPG", "a10");
	put("t/a-b/x.png", "x");
	put("t/b/deep/\xff\n.jpg", "odd");
	put("t/b/empty.jpg", "");
	put("t/b/.DS_Store", "hidden");
	put("t/b/Thumbs.db", "passed over");
	must(mkdir("t/lost+found", 0), "mkdir");
	must(mkdir("t/__MACOSX", 0755), "mkdir");
	put("t/__MACOSX/1.jpg", "passed over");
	put("t/.git/x.jpg", "hidden");
	put("t/a.jpg", "top");
	put("t/xjpg", "no dot");
	shows("t", GRADCOMP_SAMPLES_FOLDER, NULL,
	      "a-b/x.png:1[=x] a.jpg:-1[=top] a/10.JPG:0[=a10] a/2.jpg:0[=a2] b/deep/\xff\n.jpg:2[=odd] "
	      "b/empty.jpg:2[=] "
	      "xjpg:-1[=no dot]",
	      "files in the order of bytes; labels in the order of names");
	shows("t", GRADCOMP_SAMPLES_FOLDER, "jpg",
	      "a.jpg:-1[=top] a/10.JPG:0[=a10] a/2.jpg:0[=a2] b/deep/\xff\n.jpg:2[=odd] b/empty.jpg:2[=]",
	      "a suffix, in capitals too; labels stay");
	shows("t", 0, ".png/x", "a-b/x.png:1[=x]", "two suffixes, a dot before one");
	s = open_as("t", GRADCOMP_SAMPLES_FOLDER, NULL);
	is_str(gradcomp_samples_class(s, 1), "a-b", "a class by its label");
	is_str(gradcomp_samples_class(s, 3), "empty", "a class without a sample is one");
	ok(!gradcomp_samples_class(s, 4) && !gradcomp_samples_class(s, UINT32_MAX), "no class behind the last");
	is_int(gradcomp_samples_format(s), GRADCOMP_SAMPLES_FOLDER, "it is a tree");
	gradcomp_samples_close(s);
	gradcomp_samples_close(NULL);
}

static void reading(void)
{
	gradcomp_samples *s = open_as("t", GRADCOMP_SAMPLES_FOLDER, "jpg");
	gradcomp_sample_info info = {.struct_size = sizeof info},
			     part = {.struct_size = offsetof(gradcomp_sample_info, bytes)};
	uint64_t n = 99;
	char buf[20];
	is_int(gradcomp_samples_info(s, 5, &info, &why), GRADCOMP_ERR_RANGE, "no sample 5");
	like(why.text, "t has 5 samples; there is no sample 5", "... says how many there are");
	is_int(gradcomp_samples_read(s, 0, 1, buf, 20, &n, &why), GRADCOMP_ERR_RANGE, "no part 1");
	is_int(gradcomp_samples_read(s, 1, 0, buf, 2, &n, &why), GRADCOMP_ERR_RANGE, "a buffer that is too small");
	is_int(n, 3, "... and how large it should be");
	is_int(gradcomp_samples_read(s, 1, 0, buf, 3, NULL, NULL), 0, "one that is not");
	is_int(gradcomp_samples_read(s, 4, 0, NULL, 0, &n, &why), 0, "no bytes need no buffer");
	is_int(gradcomp_samples_info(s, 1, &part, &why), 0, "a shorter info");
	ok(part.nparts == 1 && part.label == 0 && !part.key, "... is filled as far as it goes");
	put("t/a/2.jpg", "longer now");
	is_int(gradcomp_samples_read(s, 2, 0, buf, 20, &n, &why), 0, "a file that grew");
	is_int(n, 10, "... is read as it is");
	must(unlink("t/a/2.jpg"), "unlink");
	is_int(gradcomp_samples_read(s, 2, 0, buf, 20, &n, &why), GRADCOMP_ERR_IO, "a file that is gone");
	like(why.text, "cannot read a/2.jpg: No such file", "... is named");
	must(mkfifo("t/a/2.jpg", 0600), "mkfifo");
	is_int(gradcomp_samples_read(s, 2, 0, buf, 20, &n, &why), GRADCOMP_ERR_STATE,
	       "a FIFO in its place does not block");
	must(unlink("t/a/2.jpg"), "unlink");
	must(symlink("/etc/hostname", "t/a/2.jpg"), "symlink");
	is_int(gradcomp_samples_read(s, 2, 0, buf, 20, &n, &why), GRADCOMP_ERR_UNSUPPORTED,
	       "a link out of the tree in its place");
	like(why.text, "leads out of t", "... is said");
	must(unlink("t/a/2.jpg"), "unlink");
	put("t/a/2.jpg", "a2");
	pid_t child = fork();
	if (!child) {
		bool right = !gradcomp_samples_read(s, 2, 0, buf, 20, &n, NULL) && n == 2;
		gradcomp_samples_close(s);
		_exit(!right);
	}
	int state;
	ok(waitpid(child, &state, 0) == child && state == 0, "a forked child reads");
	gradcomp_samples_close(s);
}

static void links(void)
{
	must(mkdir("l", 0755), "mkdir");
	must(mkdir("l/a", 0755), "mkdir");
	must(mkdir("l/b", 0755), "mkdir");
	put("l/a/1.jpg", "one");
	put("out.jpg", "out");
	must(symlink("../a/1.jpg", "l/b/2.jpg"), "symlink");
	must(symlink("a", "l/c"), "symlink");
	must(symlink("../out.jpg", "l/README"), "symlink");
	shows("l", 0, "jpg", "a/1.jpg:0[=one] b/2.jpg:1[=one] c/1.jpg:2[=one]",
	      "links in the tree are followed; others that are not asked for are passed over");
	refused("l", 0, GRADCOMP_ERR_UNSUPPORTED,
	        "l: README is a symbolic link that leads out of the dataset or to nothing", "a link out of the tree");
	must(unlink("l/README"), "unlink");
	must(symlink("nothing.jpg", "l/b/3.jpg"), "symlink");
	refused("l", 0, GRADCOMP_ERR_UNSUPPORTED, "b/3.jpg is a symbolic link that", "a link to nothing");
	must(unlink("l/b/3.jpg"), "unlink");
	must(symlink("/out", "l/b/3.jpg"), "symlink");
	refused("l", 0, GRADCOMP_ERR_UNSUPPORTED, "b/3.jpg is a symbolic link that", "an absolute link");
	must(unlink("l/b/3.jpg"), "unlink");
	must(symlink("..", "l/b/up"), "symlink");
	refused("l", 0, GRADCOMP_ERR_UNSUPPORTED, "b/up is a symbolic link to a directory that it is in", "a circle");
	must(unlink("l/b/up"), "unlink");
	must(symlink("../c", "l/a/d"), "symlink");
	refused("l", 0, GRADCOMP_ERR_UNSUPPORTED, "/d is a symbolic link to a directory", "a circle through two links");
	must(unlink("l/a/d"), "unlink");
	must(mkdir("l/e", 0755), "mkdir");
	must(symlink("../e", "l/a/e"), "symlink");
	refused("l", 0, GRADCOMP_ERR_UNSUPPORTED, "c/e is a symbolic link to a directory, below another such link",
	        "a link below a link");
	must(unlink("l/a/e"), "unlink");
	must(mkfifo("l/e/pipe.jpg", 0600), "mkfifo");
	refused("l", 0, GRADCOMP_ERR_UNSUPPORTED, "e/pipe.jpg is neither a file nor a directory", "a FIFO");
	must(unlink("l/e/pipe.jpg"), "unlink");
}

/* The way without openat2() agrees with the one with it. */
static void beneath(void)
{
	static const struct {
		const char *path;
		int want;
	} cases[] = {{"b/2.jpg", 0},
	             {"c/1.jpg", 0},
	             {"b/../a/./1.jpg", 0},
	             {"../out.jpg", EXDEV},
	             {"c/../a/1.jpg", 0},
	             {"none", ENOENT},
	             {"a/1.jpg/x", ENOTDIR},
	             {"w/1", ELOOP},
	             {"c/../../out.jpg", EXDEV},
	             {"x/../l/a", EXDEV},
	             {"", 0},
	             {"c", 0},
	             {"y/1.jpg", 0}};
	int root = open("l", O_PATH | O_DIRECTORY);
	must(symlink("w", "l/w"), "symlink");
	must(symlink("../l", "l/x"), "symlink");
	must(symlink("b/../c/.", "l/y"), "symlink");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct stat a, b;
		errno = 0;
		int fd = openat_beneath(root, cases[i].path, O_RDONLY | O_NONBLOCK), e = fd < 0 ? errno : 0;
		int walked = openat_beneath_fallback(root, cases[i].path, O_RDONLY | O_NONBLOCK),
		    e2 = walked < 0 ? errno : 0;
		ok(e == cases[i].want && e2 == cases[i].want, "'%s': %s and %s", cases[i].path, strerror(e),
		   strerror(e2));
		if (fd >= 0 && walked >= 0)
			ok(!fstat(fd, &a) && !fstat(walked, &b) && a.st_ino == b.st_ino, "... the same file");
		if (fd >= 0)
			close(fd);
		if (walked >= 0)
			close(walked);
	}
	close(root);
}

/* Somebody exchanges a folder and a link out of the tree all the time. */
static void races(void)
{
	int inside = 0, outside = 0, refusals = 0;
	must(mkdir("race", 0755), "mkdir");
	must(mkdir("race/a", 0755), "mkdir");
	must(mkdir("elsewhere", 0755), "mkdir");
	put("race/a/x.jpg", "inside");
	put("elsewhere/x.jpg", "outside");
	gradcomp_samples *s = open_as("race", 0, NULL);
	must(symlink("../elsewhere", "race/b"), "symlink");
	if (renameat2(AT_FDCWD, "race/a", AT_FDCWD, "race/b", RENAME_EXCHANGE)) {
		skip("names cannot be exchanged here", "a race with who exchanges them");
		gradcomp_samples_close(s);
		return;
	}
	int root = open("race", O_PATH | O_DIRECTORY);
	pid_t child = fork();
	if (!child)
		for (;;)
			if (renameat2(AT_FDCWD, "race/a", AT_FDCWD, "race/b", RENAME_EXCHANGE))
				_exit(1);
	for (int i = 0; i < 20000 && (i < 2000 || !inside || !refusals); i++) {
		char buf[20] = "";
		uint64_t n;
		gradcomp_status st = GRADCOMP_OK;
		if (i % 2) {
			st = gradcomp_samples_read(s, 0, 0, buf, 20, &n, &why);
		} else {
			int fd = openat_beneath_fallback(root, "a/x.jpg", O_RDONLY);
			if (fd < 0 || read(fd, buf, sizeof buf - 1) < 0)
				st = GRADCOMP_ERR_IO;
			if (fd >= 0)
				close(fd);
		}
		inside += !st && !strcmp(buf, "inside");
		outside += !st && strcmp(buf, "inside");
		refusals += st != 0;
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(root);
	gradcomp_samples_close(s);
	is_int(outside, 0, "a folder and a link out of the tree are exchanged: nothing outside is read");
	ok(inside && refusals, "... but what is inside (%d times), or nothing (%d)", inside, refusals);
}

/* An archive with one sample. */
static const void *tar_of_one(void)
{
	tar_at = 0;
	tar_file("a.jpg", "x");
	memset(tar_out + tar_at, 0, 1024);
	tar_at = 0;
	return tar_out;
}

/* A tree that is a list of files with a space between them; "NAME/" is a folder. */
static void tree(const char *top, const char *files)
{
	char list[400], command[600], *rest = list;
	snprintf(list, sizeof list, "%s", files);
	snprintf(command, sizeof command, "rm -rf %s; mkdir %s", top, top);
	must(system(command) ? -1 : 0, command); // NOLINT(cert-env33-c)
	for (const char *f; (f = strsep(&rest, " "));) {
		char path[200];
		snprintf(path, sizeof path, "%s/%s", top, f);
		for (char *p = path; (p = strchr(p + 1, '/'));) {
			*p = 0;
			if (mkdir(path, 0755) && errno != EEXIST)
				must(-1, path);
			*p = '/';
		}
		if (path[strlen(path) - 1] != '/')
			put_bytes(path, listing_suffix(path, "tar") ? tar_of_one() : "x",
			          listing_suffix(path, "tar") ? 2048 : 1);
	}
}

/* A layout that is not said is not guessed. */
static void layouts(void)
{
	static const struct {
		const char *files, *words; /* NULL: it is read */
		int folder, tar;           /* samples when that is said; -1: refused too */
	} cases[] = {
		{"cat/1.jpg dog/2.jpg", NULL, 2, -1},
		{"1.jpg 2.jpg", NULL, 2, -1},
		{"1.tar 2.tar index.json", NULL, 3, 2},
		{"1.tar val/2.tar",
	         "x holds the shard 1.tar beside the folder val: name the shards that are meant (x/*.tar), "
	         "or the folder (x/val)",
	         2, -1},
		{"1.tar cat/1.jpg", "beside the folder cat", 2, 1},
		{"train/1.tar val/2.tar",
	         "x holds the shard train/1.tar in a folder of it: name the folder whose shards are "
	         "meant (x/train)",
	         2, -1},
		{"a/b/1.tar", "name the folder whose shards are meant (x/a/b)", 1, -1},
		{"train-0.tar train-1.tar val-0.tar",
	         "x holds shards of several splits (train-0.tar, val-0.tar): name those that are meant, as x/train-*.tar",
	         3, -1},
		{"imagenet-Train-0.tar imagenet-test-0.tar", "several splits", 2, -1},
		{"train-0.tar trainer-0.tar contest-0.tar", NULL, 3, 3},
		{"train/cat/1.jpg val/cat/2.jpg",
	         "x holds the folders train and val, which are splits and not classes: name the "
	         "one that is meant (x/train)",
	         2, -1},
		{"train2017/1.jpg annotations/1.json test2017/1.jpg", "are splits and not classes", 3, -1},
		{"train/1.jpg bus/1.jpg testament/1.jpg", NULL, 3, -1},
		{"imagenet/cat/1.jpg imagenet/dog/2.jpg",
	         "x holds nothing but the folder imagenet, which holds folders: name it "
	         "(x/imagenet)",
	         2, -1},
		{"cat/1.jpg __MACOSX/2.jpg lost+found/", NULL, 1, -1},
		{"cat/1.jpg README.md", "x holds the file README.md beside the folder cat: say which files are samples",
	         2, -1},
		{"cat/1.zip", "x holds cat/1.zip, which holds samples of its own: unpack it", 1, -1},
		{"a.parquet b.parquet", "which holds samples of its own", 2, -1},
		{"cat/1.tar.gz", "x holds cat/1.tar.gz, which holds", 1, -1},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		int got[3];
		tree("x", cases[i].files);
		for (int format = 0; format < 3; format++) {
			gradcomp_samples *s = open_as("x", (gradcomp_sample_format)format, NULL);
			got[format] = s ? (int)gradcomp_samples_count(s) : -1;
			if (!format && cases[i].words)
				ok(!s && strstr(why.text, cases[i].words), "%s: %s", cases[i].files, why.text);
			gradcomp_samples_close(s);
		}
		ok(got[1] == cases[i].folder && got[2] == cases[i].tar && (cases[i].words || got[0] > 0),
		   "%s: %d samples unsaid, %d as a folder, %d as shards", cases[i].files, got[0], got[1], got[2]);
	}
	tree("x", "cat/1.jpg README.md");
	shows("x", 0, "jpg", "cat/1.jpg:0[=x]", "files beside folders that are not asked for");
	tree("x", "cat/1.jpg");
	put("x/cat/2.jpg", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
	gradcomp_samples *s = open_as("x", 0, NULL);
	char buf[200];
	uint64_t n;
	is_int(s ? gradcomp_samples_read(s, 1, 0, buf, sizeof buf, &n, &why) : 0, GRADCOMP_ERR_INVALID,
	       "a pointer of Git LFS");
	like(why.text, "cat/2.jpg is a Git LFS pointer, not what it points to: run git lfs pull", "... is called that");
	gradcomp_samples_close(s);
}

/* Lists of shards. */
static void lists(void)
{
	static const struct {
		const char *pattern, *words;
		int samples;
	} cases[] = {
		{"x/train-{0..1}.tar", NULL, 2},
		{"x/train-{1,0}.tar", NULL, 2},
		{"x/train-*.tar", NULL, 2},
		{"x/train-[0-9].tar::x/val-?.tar", NULL, 3},
		{"x/{train-{0..1},val-0}.tar", NULL, 3},
		{"x/odd\\{1\\}.tar", NULL, 1},
		{"x/odd{1}.tar", NULL, 1},
		{"x/train-{0..2}.tar", "there is no ", -1},
		{"x/none-*.tar", "x/none-*.tar: nothing has such a name", -1},
		{"x/train-{0..1.tar", "a brace has no other one", -1},
		{"x/train-*}.tar", "a brace has no other one", -1},
		{"x/train-{0}.tar", "a range that ascends, as {000..099}, or a list", -1},
		{"x/train-{1..0}.tar", "a range that ascends", -1},
		{"x/{0..999999999}.tar", "more than 1048576 shards", -1},
		{"x/{0..9999}{0..9999}.tar", "more than 1048576 shards", -1},
		{"x/train-{0,0}.tar", "are one file: each of its samples would come twice", -1},
		{"x/{train,val}-*.tar::x/twin.tar", "are one file", -1},
		{"x/t*::x/sub*", "x/sub is a folder, in a list of shards: name its shards, as", -1},
		{"x/train-0.tar::", "a name in it is empty", -1},
		{"x/page*", "is a web page", -1},
		{"x/pip*", "is no file", -1},
	};
	tree("x", "train-0.tar train-1.tar val-0.tar odd{1}.tar sub/1.tar");
	put("x/page.tar", "<html>");
	must(mkfifo("x/pipe", 0600), "mkfifo");
	must(link("x/val-0.tar", "x/twin.tar"), "link");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		gradcomp_samples *s = open_as(cases[i].pattern, 0, NULL);
		int n = s ? (int)gradcomp_samples_count(s) : -1;
		ok(n == cases[i].samples && (s || strstr(why.text, cases[i].words)), "%s: %d samples, %s",
		   cases[i].pattern, n, s ? "" : why.text);
		gradcomp_samples_close(s);
	}
	refused("x/*.tar", GRADCOMP_SAMPLES_FOLDER, GRADCOMP_ERR_INVALID, "there is no folder x/*.tar",
	        "a list as a folder");
	must(unlink("x/twin.tar"), "unlink");
	gradcomp_samples *s = open_as("x/{train,val}-*.tar", 0, NULL);
	must(chdir("x"), "chdir");
	few_files(16);
	char buf[8];
	uint64_t n;
	is_int(s ? gradcomp_samples_read(s, 2, 0, buf, sizeof buf, &n, &why) : -1, 0, "from another directory");
	must(chdir(".."), "chdir");
	gradcomp_samples_close(s);
}

static void wrong(void)
{
	gradcomp_samples_options o = {.struct_size = sizeof o, .format = (gradcomp_sample_format)9};
	gradcomp_samples *s;
	put("file", "something");
	refused("none", 0, GRADCOMP_ERR_NOTFOUND, "there is no none", "no such path");
	refused("file/x", 0, GRADCOMP_ERR_NOTFOUND, "there is no file/x", "a path through a file");
	refused("", 0, GRADCOMP_ERR_INVALID, "need the path", "no path");
	refused("file", 0, GRADCOMP_ERR_INVALID, "file is neither a directory nor a tar archive",
	        "a file of something else");
	refused("file", GRADCOMP_SAMPLES_FOLDER, GRADCOMP_ERR_INVALID, "file is not a folder", "a file as a folder");
	refused("t", GRADCOMP_SAMPLES_TAR, GRADCOMP_ERR_NOTFOUND, "t holds no shard", "a tree as shards");
	must(mkfifo("pipe", 0600), "mkfifo");
	refused("pipe", 0, GRADCOMP_ERR_INVALID, "pipe is neither a directory nor a file", "a FIFO does not block");
	is_int(gradcomp_samples_open("t", &o, &s, &why), GRADCOMP_ERR_INVALID, "an unknown format");
	o = (gradcomp_samples_options){.struct_size = sizeof o, .workers = 65};
	is_int(gradcomp_samples_open("t", &o, &s, &why), GRADCOMP_ERR_INVALID, "too many workers");
	o.struct_size = offsetof(gradcomp_samples_options, workers);
	o.format = GRADCOMP_SAMPLES_FOLDER;
	is_int(gradcomp_samples_open("t", &o, &s, &why), 0, "options of an older caller");
	gradcomp_samples_close(s);
}

/* Many folders on several threads: the list does not depend on them. */
static void many(void)
{
	char path[64];
	gradcomp_samples_options one = {.struct_size = sizeof one, .workers = 1}, more = one;
	gradcomp_samples *a, *b;
	bool same = true;
	must(mkdir("m", 0755), "mkdir");
	for (int i = 0; i < 40; i++) {
		snprintf(path, sizeof path, "m/%d", i * 7919 % 1000);
		must(mkdir(path, 0755), path);
		for (int k = 0; k < 30; k++) {
			snprintf(path, sizeof path, "m/%d/%d", i * 7919 % 1000, k * 31 % 100);
			put(path, path);
		}
	}
	more.workers = 16;
	must(gradcomp_samples_open("m", &one, &a, &why), why.text);
	must(gradcomp_samples_open("m", &more, &b, &why), why.text);
	is_int(gradcomp_samples_count(a), 1200, "1,200 files");
	is_int(gradcomp_samples_count(b), 1200, "on 16 threads too");
	for (uint64_t i = 0; i < 1200; i++) {
		gradcomp_sample_info x = {.struct_size = sizeof x}, y = x;
		same &= !gradcomp_samples_info(a, i, &x, NULL) && !gradcomp_samples_info(b, i, &y, NULL) &&
		        !strcmp(x.key, y.key) && x.label == y.label && x.bytes == strlen(x.key) + 2;
		if (i) {
			gradcomp_sample_info before = {.struct_size = sizeof before};
			gradcomp_samples_info(a, i - 1, &before, NULL);
			same &= strcmp(before.key, x.key) < 0;
		}
	}
	ok(same, "the same and in order");
	gradcomp_samples_close(a);
	gradcomp_samples_close(b);
}

int main(void)
{
	begin("samples-tree");
	order();
	reading();
	links();
	beneath();
	races();
	wrong();
	many();
	layouts();
	lists();
	return done_testing();
}
