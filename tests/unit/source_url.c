/* URLs of NFS servers: what they mean, and which are refused with what reason. */
#include <sys/wait.h>
#include <unistd.h>

#include "io/source/nfs_url.h"
#include "tests/support/tap.h"

static const struct {
	const char *text, *server, *path, *name;
	int version, port, mount_port;
} right[] = {
	{"nfs://server/export/a", "server", "/export/a", "nfs://server/export/a", 4, 0, 0},
	{"NFS://Server.Example/export//a/", "server.example", "/export/a", "nfs://server.example/export/a", 4, 0, 0},
	{"nfs://10.0.0.1:20490/", "10.0.0.1", "/", "nfs://10.0.0.1:20490/", 4, 20490, 0},
	{"nfs://server:2049/x", "server", "/x", "nfs://server/x", 4, 2049, 0},
	{"nfs://[fe80::1%eth0]:99/x", "fe80::1%eth0", "/x", "nfs://[fe80::1%eth0]:99/x", 4, 99, 0},
	{"nfs://s/x?version=3&nfsport=7&mountport=8", "s", "/x", "nfs://s:7/x", 3, 7, 8},
	{"nfs://s:7/x?nfsport=7", "s", "/x", "nfs://s:7/x", 4, 7, 0},
	{"nfs://s/a%20b%3f%25%ff/c", "s", "/a b?%\xff/c", "nfs://s/a%20b%3F%25%FF/c", 4, 0, 0},
	{"nfs://s/...", "s", "/...", "nfs://s/...", 4, 0, 0},
};

static const struct {
	const char *text, *why;
} bad[] = {
	{"nfs://", "no server"},
	{"nfs:///x", "no server"},
	{"nfs://s", "no path"},
	{"nfs://s?version=4", "no path"},
	{"nfs://user@s/x", "user before the server"},
	{"nfs://user:secret@s/x", "user before the server"},
	{"nfs://s:0/x", "port"},
	{"nfs://s:65536/x", "port"},
	{"nfs://s:/x", "port"},
	{"nfs://s:+5/x", "port"},
	{"nfs://s:99999999999999999999/x", "port"},
	{"nfs://-s/x", "begins with '-'"},
	{"nfs://s\n/x", "character"},
	{"nfs://s s/x", "character"},
	{"nfs://[::1/x", "no ']'"},
	{"nfs://[::1]x/x", "port"},
	{"nfs://[host]/x", "no address"},
	{"nfs://[::\n]/x", "character"},
	{"nfs://s/a\nb", "must be written %XX"},
	{"nfs://s/a b", "must be written %XX"},
	{"nfs://s/a%00b", "%00"},
	{"nfs://s/a%4", "wrong %XX"},
	{"nfs://s/a%zz", "wrong %XX"},
	{"nfs://s/../x", "component . or .."},
	{"nfs://s/a/..", "component . or .."},
	{"nfs://s/a/%2e%2e/b", "component . or .."},
	{"nfs://s/./b", "component . or .."},
	{"nfs://s/x?", "not known"},
	{"nfs://s/x?debug=1", "not known"},
	{"nfs://s/x?version", "cannot have"},
	{"nfs://s/x?version=2", "cannot have"},
	{"nfs://s/x?version=4.1", "cannot have"},
	{"nfs://s/x?version=4&", "not known"},
	{"nfs://s/x?nfsport=0", "cannot have"},
	{"nfs://s:5/x?nfsport=6", "two ports"},
	{"nfs://s/x?uid=-1", "cannot have"},
	{"nfs://s/x?uid=4294967295", "cannot have"},
};

static void lengths(void)
{
	static source_url u;
	static char text[3 * PATH_MAX];
	gradcomp_error err;
	strcpy(text, "nfs://");
	memset(text + 6, 's', 255);
	strcpy(text + 261, "/x");
	is_int(source_url_parse(text, &u, &err), 0, "a server of 255 characters");
	memset(text + 6, 's', 256);
	strcpy(text + 262, "/x");
	is_int(source_url_parse(text, &u, &err), GRADCOMP_ERR_INVALID, "not one of 256");
	strcpy(text, "nfs://s/");
	memset(text + 8, 'x', 256);
	is_int(source_url_parse(text, &u, &err), GRADCOMP_ERR_INVALID, "nor a name of 256");
	for (int i = 8; i < PATH_MAX + 100; i++)
		text[i] = i % 100 ? 'x' : '/';
	is_int(source_url_parse(text, &u, &err), GRADCOMP_ERR_INVALID, "nor a path longer than PATH_MAX");
	like(err.text, "too long", "which is said");
	for (size_t i = 8; i < 8 + 3 * 4000; i += 3)
		memcpy(text + i, (i - 8) % 600 ? "%ff" : "%2f", 4);
	is_int(source_url_parse(text, &u, &err), 0, "a path of bytes that are written %%XX");
}

static void users(void)
{
	source_url u;
	gradcomp_error err;
	char text[100];
	is_int(source_url_parse("nfs://s/x", &u, &err), 0, "without a user");
	ok(u.own && u.uid == geteuid() && u.gid == getegid(), "requests are the process's");
	snprintf(text, sizeof text, "nfs://s/x?uid=%u&gid=%u", geteuid(), getegid());
	is_int(source_url_parse(text, &u, &err), 0, "with his own numbers");
	ok(u.own, "too");
	if (geteuid() == 0) {
		is_int(source_url_parse("nfs://s/x?uid=12&gid=13", &u, &err), 0, "root reads as somebody else");
		ok(!u.own && u.uid == 12 && u.gid == 13, "with these numbers");
	}
	/* A process of its own, which may be somebody else. */
	fflush(stdout);
	pid_t pid = fork();
	int status = 1;
	if (pid == 0) {
		if (geteuid() == 0 && seteuid(65534) < 0)
			_exit(2);
		_exit(source_url_parse("nfs://s/x?uid=0", &u, &err) != GRADCOMP_ERR_INVALID ||
		      !strstr(err.text, "only root can read as somebody else"));
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || (WIFEXITED(status) && WEXITSTATUS(status) == 2))
		skip("cannot become another user", "others are refused");
	else
		is_int(status, 0, "others are refused, and told so");
}

int main(void)
{
	gradcomp_error err;
	source_url u;
	for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
		if (!is_int(source_url_parse(right[i].text, &u, &err), 0, "%s", right[i].text)) {
			printf("# %s\n", err.text);
			continue;
		}
		is_str(u.server, right[i].server, "server");
		is_str(u.path, right[i].path, "path");
		is_str(u.name, right[i].name, "name");
		ok(u.version == right[i].version && u.port == right[i].port && u.mount_port == right[i].mount_port,
		   "version %d, ports %d and %d", u.version, u.port, u.mount_port);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		like(source_url_parse(bad[i].text, &u, &err) == GRADCOMP_ERR_INVALID ? err.text : "(taken)", bad[i].why,
		     bad[i].text);
	ok(!source_url_is("/nfs://x") && !source_url_is("nfs:/x") && source_url_is("nfs://"), "what is a URL");
	lengths();
	users();
	return done_testing();
}
