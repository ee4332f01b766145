/* All that an NFS server sends is checked before libnfs decodes it, or nothing is asked of a server: so it is where
 * the program has loaded libnfs first. */
#include <dlfcn.h>
#include <sys/wait.h>

#include "tests/support/stage_fixture.h"

/* The library that the module was linked with. */
static bool load_libnfs(void)
{
	static const char *const names[] = {"libnfs.so.13", "libnfs.so.14", "libnfs.so.16", "libnfs.so"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (dlopen(names[i], RTLD_NOW))
			return true;
	return false;
}

/* In a process of its own, since modules are never unloaded. Nobody listens at port 1. */
static int stage_nfs(bool first, char text[512])
{
	int ends[2], status = 0;
	must(pipe(ends), "pipe");
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		gradcomp_stage_options o = {.struct_size = sizeof o, .source = "nfs://127.0.0.1:1/export"};
		if (first && !load_libnfs())
			_exit(77);
		gradcomp_status failed = gradcomp_stage(&o, &got, &why);
		(void)!write(ends[1], why.text, strlen(why.text) + 1);
		_exit(-failed);
	}
	close(ends[1]);
	text[0] = 0;
	(void)!read(ends[0], text, 512);
	close(ends[0]);
	must(child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ? -1 : 0, "fork");
	return -WEXITSTATUS(status);
}

int main(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4200], text[512];
	snprintf(path, sizeof path, "%s/lib/gradcomp", build ? build : ".");
	bench_begin();
	setenv("GRADCOMP_PLUGIN_PATH", path, 1);
	strcat(path, "/source/nfs.so");
	if (access(path, R_OK)) {
		skip("built without libnfs", "an NFS server");
		return done_testing();
	}
	int status = stage_nfs(false, text);
	is_int(status, GRADCOMP_ERR_IO, "a server that is not there is asked");
	like(text, "127.0.0.1", "... and named");
	status = stage_nfs(true, text);
	if (status == -77) {
		skip("it cannot be loaded", "with libnfs loaded first");
		return done_testing();
	}
	is_int(status, GRADCOMP_ERR_UNSUPPORTED, "with libnfs loaded first nobody is asked");
	like(text, "has loaded libnfs before gradcomp did", "... and it is said why");
	return done_testing();
}
