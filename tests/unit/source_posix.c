/* Sources on a mounted filesystem: directories and files, what a reader sees of them,
 * and that no symbolic link leads it away. */
#include "io/source/source.h"
#include "tests/support/stage_fixture.h"

static source *from;
static source_reader *reader;
static const source_wait no_wait = {NULL, NULL};

static gradcomp_status opens(const char *path)
{
	gradcomp_status st = source_open(NULL, path, no_wait, &from, &why);
	if (!st)
		must(source_reader_open(from, no_wait, &reader, &why), "reader");
	return st;
}

static void closes(void)
{
	source_reader_close(reader);
	source_close(from);
}

struct seen {
	int n, files, dirs, links, other;
	char last[256];
	int stop_after;
};

static gradcomp_status see(void *ctx, const char *name, const source_stat *st, gradcomp_error *err)
{
	struct seen *s = ctx;
	s->n++;
	s->files += S_ISREG(st->mode);
	s->dirs += S_ISDIR(st->mode);
	s->links += S_ISLNK(st->mode);
	s->other += S_ISFIFO(st->mode);
	snprintf(s->last, sizeof s->last, "%s", name);
	return s->n == s->stop_after ? error_set(err, GRADCOMP_ERR_STATE, "enough") : GRADCOMP_OK;
}

static void tree(void)
{
	char buf[64], target[4096], real[4096];
	struct seen s = {0};
	source_stat st;
	struct stat is;
	uint64_t got, data, hole;
	must(mkdir("src/sub", 0755), "sub");
	put("src/sub/file", "0123456789");
	put("src/a\n\xff", "");
	must(symlink("sub/file", "src/link"), "link");
	must(symlink("sub", "src/way"), "way");
	must(mkfifo("src/pipe", 0644), "pipe");
	must(truncate("src/sub/file", 3 << 20), "truncate");
	must(realpath("src", real) ? 0 : -1, "realpath");
	is_int(opens("src/../src/"), 0, "a directory");
	is_str(source_name(from), real, "by its real path");
	ok(!source_is_file(from) && source_is_mounted(from) && !source_silent(from), "mounted, not a file");
	is_int(source_list(reader, "", see, &s, &why), 0, "listed");
	ok(s.n == 5 && s.files == 1 && s.dirs == 1 && s.links == 2 && s.other == 1, "with all it has");
	s = (struct seen){.stop_after = 2};
	is_int(source_list(reader, "", see, &s, &why), GRADCOMP_ERR_STATE, "until one has enough");
	ok(s.n == 2 && !strcmp(why.text, "enough"), "which ends it");
	is_int(source_list(reader, "way", see, &s, &why) < 0, 1, "not through a link");
	is_int(source_lookup(reader, "way/file", &st, &why), GRADCOMP_ERR_NOTFOUND, "nor to what is behind it");
	is_int(source_file(reader, "way/file", 0, &st, &why), GRADCOMP_ERR_NOTFOUND, "nor opened");
	is_int(source_file(reader, "link", 0, &st, &why), GRADCOMP_ERR_NOTFOUND, "nor a link itself");
	is_int(source_file(reader, "pipe", 0, &st, &why), GRADCOMP_ERR_NOTFOUND, "nor a FIFO, which would wait");
	is_int(source_lookup(reader, "link", &st, &why), 0, "a link is seen");
	ok(S_ISLNK(st.mode), "as a link");
	is_int(source_readlink(reader, "link", target, &why), 0, "and read");
	is_str(target, "sub/file", "as it is");
	is_int(source_file(reader, "sub/file", 10, &st, &why), 0, "a file is opened");
	must(stat("src/sub/file", &is), "stat");
	ok(st.size == 3 << 20 && st.mode == is.st_mode && st.ino == is.st_ino && st.nlink == 1 &&
	           st.mtime_ns == (int64_t)is.st_mtim.tv_sec * 1000000000 + is.st_mtim.tv_nsec,
	   "it is what it is");
	is_int(source_read(reader, buf, 5, 5, &got, &why), 0, "read");
	ok(got == 5 && !memcmp(buf, "56789", 5), "in the middle");
	is_int(source_read(reader, buf, sizeof buf, (3 << 20) - 7, &got, &why), 0, "at its end");
	is_int(got, 7, "there is less");
	source_run(reader, 0, st.size, &data, &hole);
	ok(data == 0 && hole < st.size, "data up to %llu", (unsigned long long)hole);
	source_run(reader, hole, st.size, &data, &hole);
	ok(data == st.size && hole == st.size, "then a hole to the end");
	put("src/sub/file", "less");
	is_int(source_again(reader, &st, &why), 0, "looked at again");
	is_int(st.size, 4, "it has changed");
	must(unlink("src/sub/file"), "unlink");
	is_int(source_file(reader, "sub/file", 0, &st, &why), GRADCOMP_ERR_NOTFOUND, "a file that has gone");
	like(why.text, "sub/file", "is named");
	closes();
}

static void file(void)
{
	struct seen s = {0};
	source_stat st;
	char buf[8];
	uint64_t got;
	put("src/one", "content");
	must(symlink("one", "src/alias"), "alias");
	is_int(opens("src/alias"), 0, "a file by a link");
	is_str(source_is_file(from), "one", "is the file");
	is_int(source_list(reader, "", see, &s, &why), 0, "its tree");
	ok(s.n == 1 && s.files == 1 && !strcmp(s.last, "one"), "has it alone");
	is_int(source_lookup(reader, "", &st, &why), 0, "and a root");
	ok(S_ISDIR(st.mode) && !st.mtime_ns, "that does not change with what is beside");
	is_int(source_lookup(reader, "pipe", &st, &why), GRADCOMP_ERR_NOTFOUND, "what is beside is not there");
	is_int(source_file(reader, "pipe", 0, &st, &why), GRADCOMP_ERR_NOTFOUND, "nor opened");
	is_int(source_list(reader, "sub", see, &s, &why), GRADCOMP_ERR_NOTFOUND, "nor listed");
	is_int(source_file(reader, "one", 7, &st, &why), 0, "the file is opened");
	is_int(source_read(reader, buf, 8, 0, &got, &why), 0, "and read");
	ok(got == 7 && !memcmp(buf, "content", 7), "whole");
	closes();
	is_int(opens("src/pipe"), GRADCOMP_ERR_INVALID, "a FIFO is no source");
	is_int(opens("src/none"), GRADCOMP_ERR_NOTFOUND, "nothing neither");
	is_int(opens("src/one/x"), GRADCOMP_ERR_NOTFOUND, "nor what is below a file");
}

int main(void)
{
	bench_begin();
	tree();
	file();
	return done_testing();
}
