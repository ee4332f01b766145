/* Enemies at work while a dataset is staged: names of the source that become links to
 * somewhere else and back, and another user who makes, takes and swaps names in the
 * cache. Whoever wins a race, nothing outside the tree is ever read or written. */
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/stage_fixture.h"

#define ROUNDS 60
#define VICTIM 61234
#define ENEMY 61235

/* The enemy counts these, in shared memory. */
static atomic_int *turns, *successes;

/* Starts act() in a loop, as another user when uid is not 0; killed by the caller, or with it. */
static pid_t enemy(int (*act)(void), uid_t uid)
{
	pid_t parent = getpid(), pid = fork();
	must(pid, "fork");
	if (pid)
		return pid;
	if (uid && (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0))
		_exit(1);
	for (; getppid() == parent; atomic_fetch_add(turns, 1)) {
		atomic_fetch_add(successes, act());
		usleep((useconds_t)(random() % 1500)); /* so that every step is disturbed now and then */
	}
	_exit(0);
}

static void stop(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void swap(const char *a, const char *b)
{
	renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

static int swap_folder(void)
{
	swap("src/d", "evil/d");
	return 1;
}

static int swap_file(void)
{
	swap("src/d/f", "evil/f");
	return 1;
}

/* A hard link to a file of the same size and time: it is in the tree then, and may be
 * in the copy, but never in part. */
static int swap_link(void)
{
	if (link("outside/other", "evil/h") == 0)
		rename("evil/h", "src/d/f");
	if (link("evil/good", "evil/g") == 0)
		rename("evil/g", "src/d/f");
	return 1;
}

/* A folder in which names come and go: the copy may be of any moment. */
static int come_and_go(void)
{
	if (rename("src/d/new", "src/d/newer") < 0 && unlink("src/d/newer") < 0)
		put("src/d/new", "good");
	return 1;
}

static void fresh(void)
{
	/* Sizes and times are the same, so that they tell nothing. */
	int bad = system("rm -rf src evil outside && mkdir -p src/d evil outside/d && echo good >src/a && echo "
	                 "good >src/d/f && "
	                 "echo EVIL >outside/d/f && echo EVIL >outside/f && echo good >evil/good && echo EVIL "
	                 ">outside/other && "
	                 "ln -s ../outside/d evil/d && ln -s ../../outside/f evil/f && "
	                 "touch -d @1000000000 outside/d/f outside/f outside/other src/d/f src/a evil/good");
	must(bad ? -1 : 0, "source");
}

/* `inside`: what the enemy brings in is in the tree then, and may be in a copy. */
static void source_race(int (*act)(void), bool inside, const char *what)
{
	int staged = 0, leaked = 0, silent = 0, wrong = 0;
	fresh();
	int watch = inotify_init1(IN_CLOEXEC);
	must(inotify_add_watch(watch, "outside/d/f", IN_OPEN | IN_MODIFY), "watch");
	must(inotify_add_watch(watch, "outside/f", IN_OPEN | IN_MODIFY), "watch");
	atomic_store(turns, 0);
	pid_t pid = enemy(act, 0);
	for (int i = 0; i < ROUNDS; i++) {
		gradcomp_status st = stage_with(i % 2 ? GRADCOMP_STAGE_VERIFY : 0, NULL, NULL);
		staged += !st;
		silent += st && !*why.text;
		wrong += !st && strcmp(copied("a"), "good\n");
		leaked += system("grep -rqs EVIL cache") == 0;
		must(system("rm -rf cache/*") ? -1 : 0, "cache");
	}
	stop(pid);
	struct pollfd seen = {.fd = watch, .events = POLLIN};
	int opened = poll(&seen, 1, 0);
	close(watch);
	tap_tried(ROUNDS, "races of another user");
	ok(atomic_load(turns) > ROUNDS / 4, "%s: %d times, staged %d times, %d times with success", what,
	   atomic_load(turns), ROUNDS, staged);
	if (!inside)
		is_int(leaked, 0, "%s: nothing of outside is in a copy", what);
	is_int(opened, 0, "%s: nothing outside was opened", what);
	is_int(silent + wrong, 0, "%s: a failure says why, and what is not touched is right", what);
}

static char theirs[64]; /* the victim's area */

/* Takes the name, or gives back what it took: a folder open to all, a link to a folder
 * of its own, a file. */
static int take_name(void)
{
	static int kind;
	int fd = -1;
	if (rmdir(theirs) == 0 || unlink(theirs) == 0)
		return 0;
	switch (kind++ % 3) {
	case 0:
		return mkdir(theirs, 0777) == 0 && chmod(theirs, 0777) == 0;
	case 1:
		return symlink("../trap", theirs) == 0;
	default:
		fd = open(theirs, O_CREAT | O_EXCL | O_WRONLY, 0666);
	}
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* Counts what must never work. */
static int get_in(void)
{
	char path[200];
	int worked = 0;
	snprintf(path, sizeof path, "cache/stolen%d", (int)getpid());
	worked += rename(theirs, path) == 0;
	worked += symlink("trap", "cache/fake") == 0 && rename("cache/fake", theirs) == 0;
	snprintf(path, sizeof path, "%s/planted", theirs);
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	worked += fd >= 0;
	fd = open(theirs, O_RDONLY | O_DIRECTORY);
	worked += fd >= 0;
	worked += chdir(theirs) == 0;
	unlink("cache/fake");
	return worked;
}

/* Stages as the victim; the child's exit status is 0 for a right copy, 1 for a failure
 * that says why, 2 for anything else. */
static int as_victim(void)
{
	int status;
	pid_t pid = fork();
	if (!pid) {
		if (setgroups(0, NULL) < 0 || setresgid(VICTIM, VICTIM, VICTIM) < 0 ||
		    setresuid(VICTIM, VICTIM, VICTIM) < 0)
			_exit(3);
		gradcomp_status s = stage();
		if (s)
			_exit(s == GRADCOMP_ERR_INSECURE || s == GRADCOMP_ERR_IO ? 1 : 2);
		_exit(strcmp(copied("a"), "good\n") ? 2 : 0);
	}
	must(waitpid(pid, &status, 0), "wait");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 9;
}

static void cache_race(void)
{
	int outcome[10] = {0}, trapped = 0;
	snprintf(theirs, sizeof theirs, "cache/%d", VICTIM);
	must(system("rm -rf cache trap; mkdir -m 1777 cache; mkdir -m 777 trap") ? -1 : 0, "cache");
	must(chmod(".", 0755), "folder");
	atomic_store(successes, 0);
	pid_t pid = enemy(take_name, ENEMY);
	for (int i = 0; i < ROUNDS; i++) {
		char command[160];
		outcome[as_victim()]++;
		trapped += system("test -z \"$(ls -A trap)\"") != 0;
		/* Only the victim's: the enemy keeps what he has. */
		snprintf(command, sizeof command, "find %s -maxdepth 0 -uid %d -exec rm -rf {} + 2>/dev/null", theirs,
		         VICTIM);
		must(system(command) < 0 ? -1 : 0, "area");
	}
	stop(pid);
	tap_tried(2 * ROUNDS, "races of another user");
	ok(atomic_load(successes) > 0, "names taken %d times: %d right copies, %d refusals", atomic_load(successes),
	   outcome[0], outcome[1]);
	is_int(outcome[0] + outcome[1], ROUNDS, "nothing else happens");
	is_int(trapped, 0, "nothing is written into the enemy's folder");

	must(system("rm -rf cache/*") ? -1 : 0, "cache");
	is_int(as_victim(), 0, "an area that is there");
	atomic_store(turns, 0);
	atomic_store(successes, 0);
	pid = enemy(get_in, ENEMY);
	for (int i = 0; i < ROUNDS; i++)
		outcome[as_victim()] += 100;
	stop(pid);
	is_int(outcome[0] / 100, ROUNDS, "is used while another user tries to get in");
	ok(atomic_load(turns) > ROUNDS / 4, "%d times", atomic_load(turns));
	is_int(atomic_load(successes), 0, "who neither enters it nor renames, replaces or reads it");
}

int main(void)
{
	bench_begin();
	turns = mmap(NULL, 2 * sizeof *turns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(turns == MAP_FAILED ? -1 : 0, "memory");
	successes = turns + 1;
	source_race(swap_folder, false, "a folder of the source swapped for a link to outside and back");
	source_race(swap_file, false, "a file swapped for a link to outside and back");
	source_race(swap_link, true, "a file swapped for hard links");
	source_race(come_and_go, false, "names that come and go");
	fresh();
	if (geteuid() == 0)
		cache_race();
	else
		skip("needs root", "another user and the cache");
	return done_testing();
}
