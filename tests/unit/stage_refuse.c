/* Sources and caches that are refused, by name, leaving nothing behind. */
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "tests/support/stage_fixture.h"

static void refused(gradcomp_status want, const char *text, const char *what)
{
	gradcomp_status st = stage();
	is_int(st, want, "%s: status", what);
	like(st ? why.text : "(staged)", text, what);
}

static void sources(void)
{
	put("src/file", "x");
	must(mkdir("src/sub", 0755), "sub");
	must(mkfifo("src/sub/pipe\n", 0644), "fifo");
	refused(GRADCOMP_ERR_UNSUPPORTED, "sub/pipe\\x0a is a FIFO", "FIFO");
	must(unlink("src/sub/pipe\n"), "unlink");

	struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "src/sub/sock"};
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	must(bind(s, (struct sockaddr *)&a, sizeof a), "bind");
	refused(GRADCOMP_ERR_UNSUPPORTED, "sub/sock is a socket", "socket");
	close(s);
	must(unlink("src/sub/sock"), "unlink");

	if (mknod("src/null", S_IFCHR | 0666, makedev(1, 3)) == 0) {
		refused(GRADCOMP_ERR_UNSUPPORTED, "null is a character device", "device");
		must(unlink("src/null"), "unlink");
	} else {
		skip("needs root", "device");
	}
	must(symlink("../../conf", "src/sub/out"), "symlink");
	refused(GRADCOMP_ERR_UNSUPPORTED, "the symbolic link sub/out leads out of the tree", "link to outside");
	must(unlink("src/sub/out"), "unlink");
	is_int(in_cache(""), 0, "nothing in the cache");

	gradcomp_stage_options o = {.struct_size = sizeof o, .source = "src", .max_bytes = 0, .workers = 65};
	is_int(gradcomp_stage(&o, &got, &why), GRADCOMP_ERR_INVALID, "65 workers");
	o.workers = 0;
	o.flags = 1u << 31;
	is_int(gradcomp_stage(&o, &got, &why), GRADCOMP_ERR_INVALID, "a flag of a later version");
	o.flags = 0;
	o.source = "src/missing";
	is_int(gradcomp_stage(&o, &got, &why), GRADCOMP_ERR_NOTFOUND, "no source");
	like(why.text, "src/missing", "is named");
	o.source = "src/file";
	must(mkfifo("pipe", 0644), "fifo");
	o.source = "pipe";
	is_int(gradcomp_stage(&o, &got, &why), GRADCOMP_ERR_INVALID, "a FIFO as source");
	like(why.text, "pipe is neither a directory nor a file", "is told so");
	o.source = ".";
	is_int(gradcomp_stage(&o, &got, &why), GRADCOMP_ERR_INVALID, "a source that holds the cache");
	like(why.text, "is inside", "is told so");
	put("src/more", "0123456789");
	o.source = "src";
	o.max_bytes = 10;
	is_int(gradcomp_stage(&o, &got, &why), GRADCOMP_ERR_RANGE, "more than max_bytes");
	like(why.text, "the dataset has 11 bytes; stage.max_bytes allows 10 bytes", "is told so");
	is_int(in_cache(""), 0, "nothing in the cache");
}

static void area(void)
{
	char mine[64], path[128];
	snprintf(mine, sizeof mine, "cache/%u", geteuid());
	must(rmdir(mine), "area");
	must(mkdir("elsewhere", 0700), "elsewhere");
	must(symlink("../elsewhere", mine), "symlink");
	refused(GRADCOMP_ERR_INSECURE, "is not a directory", "symbolic link planted in the cache");
	is_int(system("test -z \"$(ls -A elsewhere)\""), 0, "nothing was written through it");
	must(unlink(mine), "unlink");
	must(mkdir(mine, 0700), "area");
	must(chmod(mine, 0777), "mode");
	refused(GRADCOMP_ERR_INSECURE, "has mode 0777", "area that others can write");
	must(chmod(mine, 0750), "mode");
	refused(GRADCOMP_ERR_INSECURE, "has mode 0750", "area that others can read");
	must(chmod(mine, 0700), "mode");
	if (chown(mine, 12345, 0) == 0)
		refused(GRADCOMP_ERR_INSECURE, "belongs to uid 12345 instead of you", "area of another user");
	else
		skip("needs root", "area of another user");
	must(rmdir(mine), "area");

	must(chmod("cache", 0777), "mode");
	refused(GRADCOMP_ERR_INSECURE, "cache can be written by others (mode 0777) and is not sticky",
	        "cache that others can write");
	must(chmod("cache", 0755), "mode");
	if (chown("cache", 12345, 0) == 0) {
		refused(GRADCOMP_ERR_INSECURE, "cache belongs to uid 12345, not to root or to you",
		        "cache of another user");
		must(chown("cache", 0, 0), "owner");
	} else {
		skip("needs root", "cache of another user");
	}
	must(mkdir("open", 0777), "open");
	must(mkdir("open/cache", 0755), "open/cache");
	must(chmod("open", 0777), "mode");
	snprintf(path, sizeof path, "%s/open/cache", bench_dir);
	setenv("GRADCOMP_STAGE_CACHE_DIR", path, 1);
	refused(GRADCOMP_ERR_INSECURE, "open can be written by others", "folder of the cache that others can write");
	must(chmod("open", 01777), "mode");
	is_int(stage(), 0, "a sticky one is fine");
	snprintf(path, sizeof path, "%s/cache", bench_dir);
	setenv("GRADCOMP_STAGE_CACHE_DIR", path, 1);
	must(rename("cache", "cache.real"), "rename");
	must(symlink("cache.real", "cache"), "symlink");
	refused(GRADCOMP_ERR_INSECURE, "cache is not a directory", "cache that is a symbolic link");
	must(unlink("cache"), "unlink");
	must(mkfifo("cache", 0600), "fifo");
	refused(GRADCOMP_ERR_INSECURE, "cache is not a directory", "cache that is a FIFO");
	must(unlink("cache"), "unlink");
}

/* A link planted where a copy, its lock or its temporary directory would be. */
static void planted(void)
{
	/* In a directory that holds one, KEY or KEY.tmp is made first. */
	static const char *const names[] = {
		"",      ".tmp",      ".lock",        ".lease",        "/used",     "/size",         "/manifest",
		"/data", ".tmp/data", ".tmp/journal", ".tmp/manifest", ".tmp/size", ".tmp/data/sub", ".tmp/data/file"};
	char path[1024], key[65];
	must(rename("cache.real", "cache"), "rename");
	put("src/sub/inside", "inside");
	is_int(stage(), 0, "for its key");
	memcpy(key, got.key, sizeof key);
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		bool below = strchr(names[i], '/');
		must(chmod("elsewhere", 0711), "elsewhere");
		snprintf(path, sizeof path,
		         "cd cache && rm -rf %u && mkdir -m 700 %u && cd %u && { mkdir -p \"$(dirname %.64s%s)\" "
		         "|| :; } && "
		         "ln -s %s/%s %.64s%s",
		         geteuid(), geteuid(), geteuid(), key, names[i], bench_dir,
		         below && !strstr(names[i], "data") ? "victim"
		         : i == 2                           ? "victim"
		                                            : "elsewhere",
		         key, names[i]);
		must(system(path) ? -1 : 0, path);
		gradcomp_status st = stage();
		ok(st == 0 || st == GRADCOMP_ERR_IO, "a link KEY%s: %s", names[i], st ? why.text : "replaced");
		is_int(system("test -z \"$(ls -A elsewhere)\" && test ! -e victim && "
		              "test \"$(stat -c %a elsewhere)\" = 711"),
		       0, "is not followed");
		ok(st || (!strcmp(copied("sub/inside"), "inside") && !strcmp(copied("file"), "x")),
		   "and the copy is right");
	}
}

int main(void)
{
	bench_begin();
	sources();
	area();
	planted();
	return done_testing();
}
