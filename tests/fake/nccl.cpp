/* NCCL as libnccl.so.2 without a GPU: ranks are threads or processes of one machine,
 * data goes over sockets between them, on the stream's thread. Sums are added in the
 * order of ranks.
 *
 * What matters for who uses it is as with the real one, whose functions in src/init.cc of 2.18 to 2.30 are named
 * below: a communicator that does not block says ncclInProgress for a while, also after every call, and may be
 * asked for nothing more until then (ncclCommEnsureReady); what is split off is NULL until a thread of NCCL's has
 * made it; an abort returns when all that the communicator has on streams is over; a peer that is gone is an
 * asynchronous error, and work that cannot be done keeps its stream until the communicator is aborted.
 * FAKE_NCCL_VERSION: as ncclGetVersion() gives it.
 * FAKE_NCCL_RATE: bytes/s that a rank sends; else as fast as it goes.
 * FAKE_NCCL_SILENT=1: a peer that is gone is not noticed.
 * What a communicator has on several streams is done in the order of calls: ncclLaunchPrepare() makes the caller's
 * stream wait for what was launched last (src/enqueue.cc).
 * What a communicator does occupies the device until its peers have come, and nothing of another communicator runs
 * meanwhile ("Using multiple NCCL communicators concurrently" in NCCL's guide). Two ranks that have two of them
 * in different orders would wait for each other for ever: they end with a sentence that names both.
 * FAKE_NCCL_DIES_AT_SPLIT=K: this rank is gone when it should take part in a communicator's K-th split, from 0; -1: in
 * its making.
 * FAKE_NCCL_DAMAGE=1: what is gathered, received or broadcast has ones for its last bytes. */
#include <nccl.h>

#include "tests/fake/fake_cuda.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" {
#include "operators/operator_tables.h"
}

namespace
{

struct transfer {
	int peer;
	char *at;
	size_t bytes;
	bool sending;
};

/* One call consists of this: what moves, and what is done with it then. */
struct part {
	std::vector<transfer> moves;
	std::function<void()> after;
};

struct world {
	int rank = 0, nranks = 0;
	std::string name;
	std::vector<int> fd;
	std::vector<pid_t> process; /* by rank */
	std::atomic<int> state{ncclInProgress}, busy{0}, launching{0};
	/* comm->abortFlag: with splitShare of a parent that of its children, too. */
	std::shared_ptr<std::atomic<int>> abort_flag = std::make_shared<std::atomic<int>>(0);
	bool shares = false;
	int splits = 0;
	std::atomic<long> launches{0}, over{0}; /* so many, and so many of them have been done */
	std::vector<std::thread> threads;       /* its rendezvous, splits of it, its end */

	bool aborted() const { return *abort_flag; }
	~world()
	{
		for (int f : fd)
			if (f >= 0)
				close(f);
	}
};

sockaddr_un address(const std::string &name, int rank, socklen_t *length)
{
	sockaddr_un a = {};
	a.sun_family = AF_UNIX;
	int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "fake-nccl-%s-%d", name.c_str(), rank);
	*length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + size_t(n));
	return a;
}

/* Connects to all lower ranks, accepts all higher ones; until `aborted`. */
void accept_ranks(world *w, const world *aborted)
{
	socklen_t length;
	sockaddr_un mine = address(w->name, w->rank, &length);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (bind(listener, reinterpret_cast<sockaddr *>(&mine), length) || listen(listener, 64)) {
		w->state = ncclSystemError;
		return;
	}
	for (int r = 0; r < w->rank; r++) {
		sockaddr_un other = address(w->name, r, &length);
		int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		while (connect(s, reinterpret_cast<sockaddr *>(&other), length)) {
			if (aborted->aborted())
				return;
			usleep(1000);
		}
		if (write(s, &w->rank, sizeof w->rank) != sizeof w->rank)
			w->state = ncclSystemError;
		w->fd[size_t(r)] = s;
	}
	for (int left = w->nranks - 1 - w->rank; left;) {
		int who, s = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
		if (s < 0) {
			if (aborted->aborted())
				break;
			usleep(1000);
			continue;
		}
		if (read(s, &who, sizeof who) == sizeof who)
			w->fd[size_t(who)] = s, left--;
	}
	close(listener);
	w->process.assign(size_t(w->nranks), 0);
	for (size_t r = 0; r < w->fd.size(); r++) {
		ucred peer = {};
		socklen_t bytes = sizeof peer;
		if (w->fd[r] < 0)
			continue;
		fcntl(w->fd[r], F_SETFL, O_NONBLOCK);
		if (!getsockopt(w->fd[r], SOL_SOCKET, SO_PEERCRED, &peer, &bytes))
			w->process[r] = peer.pid;
	}
	if (w->state == ncclInProgress)
		w->state = ncclSuccess;
}

double now()
{
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Two ranks that wait for each other in different communicators tell each other after this, in s, and then again. */
constexpr double STUCK = 0.2;

/* A rank that waits says so to the processes that it waits for. */
struct notice {
	pid_t process;
	double at; /* by the clock of the machine */
	char name[160];
};

struct turn {
	const world *w;
};

/* This process's: who has it, and whom that waits for, since when. */
class device
{
	std::mutex lock;
	std::condition_variable change;
	std::deque<const turn *> turns;
	double since = 0;
	std::vector<pid_t> awaited;
	int port = -1;

	static sockaddr_un port_of(pid_t process, socklen_t *length)
	{
		return address("order-" + std::to_string(process), 0, length);
	}
	void hear()
	{
		for (;;) {
			notice n;
			if (recv(port, &n, sizeof n, 0) != sizeof n)
				continue;
			std::lock_guard<std::mutex> hold(lock);
			const world *w = turns.empty() ? nullptr : turns.front()->w;
			bool waits = false;
			for (pid_t p : awaited)
				waits |= p == n.process;
			if (!w || w->aborted() || !waits || w->name == n.name || since >= n.at)
				continue;
			std::string what = "two communicators have come in different orders: rank " +
			                   std::to_string(w->rank) + " of " + std::to_string(w->nranks) + " is at " +
			                   w->name + ", and waits for one that waits for it at " + n.name;
			fake_die(what.c_str());
		}
	}

      public:
	device()
	{
		socklen_t length;
		sockaddr_un mine = port_of(getpid(), &length);
		port = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		if (port < 0 || bind(port, reinterpret_cast<sockaddr *>(&mine), length))
			fake_die("no socket for the order of communicators");
		std::thread([this] { hear(); }).detach();
	}
	/* Returns when nothing else runs; false: aborted before. */
	bool take(const turn *t)
	{
		std::unique_lock<std::mutex> hold(lock);
		turns.push_back(t);
		while (turns.front() != t && !t->w->aborted())
			change.wait_for(hold, std::chrono::milliseconds(1));
		if (turns.front() == t)
			since = now();
		return turns.front() == t;
	}
	void give_back(const turn *t)
	{
		std::lock_guard<std::mutex> hold(lock);
		if (turns.front() == t)
			awaited.clear();
		for (auto at = turns.begin(); at != turns.end(); ++at)
			if (*at == t) {
				turns.erase(at);
				break;
			}
		change.notify_all();
	}
	/* Called by who has it; nobody: it goes on. */
	void waits(const world *w, std::vector<pid_t> whom, bool tell)
	{
		std::lock_guard<std::mutex> hold(lock);
		awaited = std::move(whom);
		notice n = {getpid(), now(), {}};
		snprintf(n.name, sizeof n.name, "%s", w->name.c_str());
		for (pid_t p : awaited) {
			socklen_t length;
			sockaddr_un to = port_of(p, &length);
			if (tell)
				sendto(port, &n, sizeof n, MSG_DONTWAIT, reinterpret_cast<sockaddr *>(&to), length);
		}
	}
};

device &the_device()
{
	static device *d = new device;
	return *d;
}

/* The work cannot go on: as a kernel would, it stays until it is aborted. */
void lost(world *w)
{
	if (!getenv("FAKE_NCCL_SILENT"))
		w->state = ncclRemoteError;
	while (!w->aborted())
		usleep(1000);
}

/* All of it at once, in order between any two ranks. False: given up. on_device: it has the device. */
bool move(world *w, std::vector<transfer> &all, bool on_device)
{
	size_t left = 0;
	double told = now();
	for (auto &t : all)
		left += t.bytes != 0;
	while (left) {
		bool moved = false;
		std::vector<char> sent(size_t(w->nranks)), received(size_t(w->nranks));
		for (auto &t : all) {
			char *turn = t.sending ? &sent[size_t(t.peer)] : &received[size_t(t.peer)];
			if (!t.bytes || *turn)
				continue;
			*turn = 1;
			int f = w->fd[size_t(t.peer)];
			ssize_t n = t.sending ? send(f, t.at, t.bytes, MSG_NOSIGNAL) : recv(f, t.at, t.bytes, 0);
			if (n > 0) {
				moved = true;
				t.at += n;
				t.bytes -= size_t(n);
				left -= !t.bytes;
			} else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
				lost(w);
				return false;
			}
		}
		if (w->aborted())
			return false;
		if (!moved)
			usleep(20);
		if (!on_device || (!moved && now() - told < STUCK))
			continue;
		std::vector<pid_t> whom;
		for (auto &t : all)
			if (t.bytes && !moved)
				whom.push_back(w->process[size_t(t.peer)]);
		the_device().waits(w, whom, !moved);
		told = now();
	}
	return true;
}

gradcomp_dtype dtype_of(ncclDataType_t t)
{
	switch (t) {
	case ncclFloat16:
		return GRADCOMP_F16;
	case ncclBfloat16:
		return GRADCOMP_BF16;
	case ncclFloat64:
		return GRADCOMP_F64;
	case ncclInt32:
		return GRADCOMP_I32;
	case ncclInt64:
		return GRADCOMP_I64;
	case ncclFloat32:
		return GRADCOMP_F32;
	default:
		return GRADCOMP_U8;
	}
}

gradcomp_op op_of(ncclRedOp_t op)
{
	return op == ncclMax ? GRADCOMP_MAX : op == ncclMin ? GRADCOMP_MIN : GRADCOMP_SUM;
}

} // namespace

struct ncclComm {
	std::shared_ptr<world> w;
};

namespace
{

/* The calls of a group, or of a single call. Plans are made when they run. */
struct call {
	ncclComm_t comm;
	cudaStream_t stream;
	std::function<part(world *)> plan;
};

/* ncclCommEnsureReady: the real one says ncclInvalidArgument and goes on with what it was at. */
void ready(ncclComm_t comm, const char *call)
{
	if (comm->w->state == ncclInProgress && !comm->w->aborted())
		fake_die((std::string(call) + ": NCCL is asked for more while it says ncclInProgress").c_str());
}

/* commReclaim, which returns when all is done, of a communicator that does not block too: ncclAsyncLaunch with
 * destroyFlag, before 2.22 a plain call. ncclGroupJobAbort joins the thread that is at work. commDestroySync waits for
 * what was launched, which ends by the abort, but not before it begins: not behind work of another communicator's that
 * waits for its peers on the same stream. */
ncclResult_t reclaim(ncclComm_t comm)
{
	while (comm->w->launching || comm->w->busy)
		usleep(20);
	for (auto &t : comm->w->threads)
		t.join();
	delete comm;
	return ncclSuccess;
}

thread_local int depth;
thread_local std::vector<call> grouped;
thread_local ncclResult_t group_failed; /* one of its calls did: then nothing is launched */

std::atomic<long> misaligned, met, made, aborted, destroyed;

/* NCCL moves single bytes from and to what does not stand on such a boundary. */
void aligned(const void *p, size_t bytes)
{
	misaligned += bytes && uintptr_t(p) % 16;
}

ncclResult_t launch()
{
	ncclResult_t failed = group_failed;
	group_failed = ncclSuccess;
	if (failed) {
		grouped.clear();
		return failed;
	}
	if (grouped.empty())
		return ncclSuccess;
	auto calls = std::make_shared<std::vector<call>>(std::move(grouped));
	grouped.clear();
	std::shared_ptr<world> w = calls->front().comm->w;
	if (w->state == ncclRemoteError)
		return ncclRemoteError;
	w->busy++;
	w->launching++;
	w->state = ncclInProgress;
	auto work = [w, calls, nth = w->launches++] {
		while (w->over < nth && !w->aborted())
			usleep(20);
		std::vector<part> parts;
		std::vector<transfer> moves;
		for (auto &c : *calls) {
			parts.push_back(c.plan(w.get()));
			moves.insert(moves.end(), parts.back().moves.begin(), parts.back().moves.end());
		}
		double sent = 0;
		for (auto &m : moves)
			sent += m.sending ? double(m.bytes) : 0;
		const turn own = {w.get()};
		{
			const fake_time takes(sent, "FAKE_NCCL_RATE");
			if (the_device().take(&own) && move(w.get(), moves, true))
				for (auto &p : parts)
					if (p.after)
						p.after();
		}
		the_device().give_back(&own);
		w->over++;
		w->busy--;
	};
	/* groupLaunchNonBlocking: a thread puts it on the stream, a moment later. */
	std::thread([w, calls, work] {
		usleep(50);
		fake_enqueue(calls->front().stream, work);
		int was = ncclInProgress;
		w->state.compare_exchange_strong(was, ncclSuccess);
		w->launching--;
	}).detach();
	return ncclInProgress;
}

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, std::function<part(world *)> plan)
{
	ready(comm, "a collective");
	grouped.push_back({comm, stream, std::move(plan)});
	return !depth ? launch() : grouped.size() % 2 ? ncclInProgress : ncclSuccess;
}

ncclResult_t refuse()
{
	if (depth)
		group_failed = ncclInvalidArgument;
	return ncclInvalidArgument;
}

/* Every rank's `bytes` come to `root` (-1: to all), put together in their order. */
ncclResult_t reduce(const void *in, void *out, size_t count, size_t skip, ncclDataType_t type, ncclRedOp_t op, int root,
                    ncclComm_t comm, cudaStream_t stream)
{
	gradcomp_dtype dtype = dtype_of(type);
	size_t bytes = count * gradcomp_dtype_bytes(dtype), away = skip * gradcomp_dtype_bytes(dtype);
	aligned(in, bytes);
	aligned(out, bytes);
	return add(comm, stream, [=](world *w) {
		part p;
		char *from = static_cast<char *>(fake_at(in, away * size_t(w->nranks - 1) + bytes));
		bool mine = root < 0 || root == w->rank;
		char *to = mine ? static_cast<char *>(fake_at(out, bytes)) : nullptr;
		auto came = std::make_shared<std::vector<char>>(mine ? bytes * size_t(w->nranks) : 0);
		for (int r = 0; r < w->nranks; r++) {
			if (r != w->rank && (root < 0 || root == r))
				p.moves.push_back({r, from + away * size_t(r), bytes, true});
			if (r != w->rank && mine)
				p.moves.push_back({r, came->data() + bytes * size_t(r), bytes, false});
		}
		int me = w->rank, n = w->nranks;
		if (mine && bytes)
			p.after = [=] {
				memcpy(came->data() + bytes * size_t(me), from + away * size_t(me), bytes);
				for (int r = 1; r < n; r++)
					operators_cpu_variant("portable")
						->reduce(nullptr, came->data(), came->data() + bytes * size_t(r), count,
					                 dtype, op_of(op));
				memcpy(to, came->data(), bytes);
			};
		return p;
	});
}

} // namespace

extern "C" {

/* Buffers off a boundary of 16 bytes; communicators that were not split off another, that were aborted, and that
 * live, of those split off too. */
long fake_nccl_misaligned(void)
{
	return misaligned;
}

long fake_nccl_met(void)
{
	return met;
}

long fake_nccl_aborted(void)
{
	return aborted;
}

long fake_nccl_live(void)
{
	return made - aborted - destroyed;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	uint64_t random[2];
	if (getrandom(random, sizeof random, 0) != sizeof random)
		return ncclSystemError;
	memset(id, 0, sizeof *id);
	snprintf(id->internal, sizeof id->internal, "%016lx%016lx", random[0], random[1]);
	return ncclSuccess;
}

/* parseCommConfig: of a configuration it takes what both know, the rest is unset; config.later is of 2.29. */
static bool parse(const ncclConfig_t *given, ncclConfig_t *config)
{
	int version;
	ncclGetVersion(&version);
	*config = NCCL_CONFIG_INITIALIZER;
	memcpy(config, given, std::min(given->size, version < 22900 ? offsetof(ncclConfig_t, later) : sizeof *config));
	return config->magic == 0xcafebeef && config->blocking == 0 && config->later == NCCL_CONFIG_UNDEF_INT;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	const char *dies = getenv("FAKE_NCCL_DIES_AT_SPLIT");
	ncclConfig_t own;
	if (!parse(config, &own) || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	if (dies && atoi(dies) < 0) {
		usleep(100000); /* the others have come by now */
		raise(SIGKILL);
	}
	auto w = std::make_shared<world>();
	w->rank = rank;
	w->nranks = nranks;
	w->name = id.internal;
	const char *share = getenv("NCCL_COMM_SPLIT_SHARE_RESOURCES");
	w->shares = share ? atoi(share) == 1 : own.splitShare == 1;
	w->fd.assign(size_t(nranks), -1);
	w->threads.emplace_back([w] { accept_ranks(w.get(), w.get()); });
	*comm = new ncclComm{w};
	met++;
	made++;
	return ncclInProgress;
}

/* ncclCommInitChildComm, "*newcomm should be NCCL_COMM_NULL until comm split fully complete": ranks tell each other
 * their colours and keys over the parent, which is busy with all of it. ncclCommInitRankFunc stores *out last, also
 * of a split that has failed. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
	ncclConfig_t own;
	if (!comm || !parse(config, &own) || color < NCCL_SPLIT_NOCOLOR)
		return ncclInvalidArgument;
	ready(comm, "ncclCommSplit");
	std::shared_ptr<world> of = comm->w;
	if (of->state != ncclSuccess)
		return ncclResult_t(of->state.load());
	const char *dies = getenv("FAKE_NCCL_DIES_AT_SPLIT");
	if (dies && of->splits == atoi(dies))
		raise(SIGKILL);
	std::string name = of->name + "-" + std::to_string(of->splits++) + "-" + std::to_string(color);
	of->state = ncclInProgress;
	*out = nullptr;
	of->threads.emplace_back([of, name, color, key, out] {
		struct place {
			int color, key;
		} own = {color, key};
		std::vector<place> all(size_t(of->nranks), own);
		std::vector<transfer> moves;
		for (int r = 0; r < of->nranks; r++)
			if (r != of->rank) {
				moves.push_back({r, reinterpret_cast<char *>(&own), sizeof own, true});
				moves.push_back({r, reinterpret_cast<char *>(&all[size_t(r)]), sizeof own, false});
			}
		bool told = move(of.get(), moves, false);
		std::shared_ptr<world> w = color == NCCL_SPLIT_NOCOLOR ? nullptr : std::make_shared<world>();
		if (w && told) {
			for (int r = 0; r < of->nranks; r++) {
				const place &p = all[size_t(r)];
				w->rank += p.color == color && (p.key < key || (p.key == key && r < of->rank));
				w->nranks += p.color == color;
			}
			w->name = name;
			/* ncclCommInitChildComm asks the parent's configuration. */
			if (of->shares)
				w->abort_flag = of->abort_flag;
			w->fd.assign(size_t(w->nranks), -1);
			accept_ranks(w.get(), of.get());
		} else if (w) {
			w->state = ncclRemoteError;
		}
		usleep(200); /* whoever looks at *out at once finds nothing */
		*out = w ? new ncclComm{w} : nullptr;
		made += !!w;
		int was = ncclInProgress;
		of->state.compare_exchange_strong(was, told && (!w || w->state == ncclSuccess) ? ncclSuccess
		                                                                               : ncclRemoteError);
	});
	return ncclInProgress;
}

/* commDestroySync, in a thread: what was launched ends first. */
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	ready(comm, "ncclCommFinalize");
	std::shared_ptr<world> w = comm->w;
	if (w->state != ncclSuccess)
		return ncclResult_t(w->state.load());
	w->state = ncclInProgress;
	w->threads.emplace_back([w] {
		while (w->busy && !w->aborted())
			usleep(20);
		usleep(200);
		int was = ncclInProgress;
		w->state.compare_exchange_strong(was, ncclSuccess);
	});
	return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	ready(comm, "ncclCommDestroy");
	if (comm->w->busy)
		fake_die("a communicator is destroyed with work under way");
	destroyed++;
	return reclaim(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	*comm->w->abort_flag = 1;
	aborted++;
	usleep(20000); /* what it frees takes a while, when kernels have ended already */
	return reclaim(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	if (!comm)
		return ncclInvalidArgument;
	*state = ncclResult_t(comm->w->state.load());
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t rc)
{
	return rc == ncclRemoteError       ? "remote process exited or there was a network error"
	       : rc == ncclSystemError     ? "unhandled system error"
	       : rc == ncclInvalidArgument ? "invalid argument"
	                                   : "no error";
}

const char *ncclGetLastError(ncclComm_t)
{
	return "";
}

ncclResult_t ncclGetVersion(int *version)
{
	const char *v = getenv("FAKE_NCCL_VERSION");
	*version = v ? atoi(v) : 22907;
	return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
	return reduce(in, out, count, 0, type, op, -1, comm, stream);
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
	return reduce(in, out, count, 0, type, op, root, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
	return reduce(in, out, count, count, type, op, -1, comm, stream);
}

/* Padding is less than 16 bytes. */
static void damage(char *at, size_t bytes)
{
	if (getenv("FAKE_NCCL_DAMAGE") && bytes > 64)
		memset(at + bytes - 24, 0xff, 24);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
	size_t bytes = count * gradcomp_dtype_bytes(dtype_of(type));
	aligned(in, bytes);
	aligned(out, bytes);
	return add(comm, stream, [=](world *w) {
		part p;
		char *from = static_cast<char *>(fake_at(in, bytes));
		char *to = static_cast<char *>(fake_at(out, bytes * size_t(w->nranks)));
		if (bytes && to + bytes * size_t(w->rank) != from)
			memcpy(to + bytes * size_t(w->rank), from, bytes);
		for (int r = 0; r < w->nranks; r++)
			if (r != w->rank) {
				p.moves.push_back({r, from, bytes, true});
				p.moves.push_back({r, to + bytes * size_t(r), bytes, false});
			}
		int me = w->rank, n = w->nranks;
		p.after = [=] {
			for (int r = 0; r < n; r++)
				if (r != me)
					damage(to + bytes * size_t(r), bytes);
		};
		return p;
	});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
	size_t bytes = count * gradcomp_dtype_bytes(dtype_of(type));
	aligned(in, bytes);
	aligned(out, bytes);
	return add(comm, stream, [=](world *w) {
		part p;
		char *from = static_cast<char *>(fake_at(in, bytes)), *to = static_cast<char *>(fake_at(out, bytes));
		for (int r = 0; r < w->nranks && w->rank == root; r++)
			if (r != root)
				p.moves.push_back({r, from, bytes, true});
		if (w->rank != root) {
			p.moves.push_back({root, to, bytes, false});
			p.after = [=] { damage(to, bytes); };
		} else if (from != to) {
			memcpy(to, from, bytes);
		}
		return p;
	});
}

static ncclResult_t one(const void *at, size_t count, ncclDataType_t type, int peer, bool sending, ncclComm_t comm,
                        cudaStream_t stream)
{
	size_t bytes = count * gradcomp_dtype_bytes(dtype_of(type));
	if (peer < 0 || peer >= comm->w->nranks || peer == comm->w->rank)
		return refuse();
	aligned(at, bytes);
	return add(comm, stream, [=](world *) {
		part p;
		char *there = static_cast<char *>(fake_at(at, bytes));
		p.moves.push_back({peer, there, bytes, sending});
		if (!sending)
			p.after = [=] { damage(there, bytes); };
		return p;
	});
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
	return one(in, count, type, peer, true, comm, stream);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
	return one(out, count, type, peer, false, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
	depth++;
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	return --depth ? ncclSuccess : launch();
}
}
