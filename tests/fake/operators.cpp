/* The operators of the fake device, as its module operators/cuda.so: the
 * host's, run on the stream's thread with the places the arguments really have.
 * Arrays of pointers and settings are read when the call is made, as with real
 * ones. */
#include "tests/fake/fake_cuda.h"
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <vector>

extern "C" {
#include "operators/cuda/cuda_module.h"
#include "operators/operator_tables.h"
}

static const char *device_error()
{
	const cudaError_t e = cudaGetLastError();
	return e ? cudaGetErrorString(e) : nullptr;
}

#include "operators/cuda/cuda_checked.h"

namespace
{

const gradcomp_operators *host()
{
	static const gradcomp_operators *table = operators_cpu_variant("portable");
	return table;
}

/* An argument, kept until the work is done. */
template <class T> struct kept {
	T v;
	T get() const { return v; }
};
template <class T> struct kept<T *> {
	T *v;
	T *get() const { return static_cast<T *>(fake_at(v)); }
};
template <> struct kept<const gradcomp_quantiser *> {
	gradcomp_quantiser v;
	mutable gradcomp_quantiser real;
	explicit kept(const gradcomp_quantiser *q) : v(*q), real(*q) {}
	const gradcomp_quantiser *get() const
	{
		real.given = static_cast<const float *>(fake_at(v.given));
		return &real;
	}
};

template <> struct kept<const gradcomp_levels *> {
	gradcomp_levels v;
	explicit kept(const gradcomp_levels *l) : v(*l) {}
	const gradcomp_levels *get() const { return &v; }
};

/* `bytes`: what it reads and writes. */
void enqueue(void *queue, double bytes, std::function<void()> work)
{
	if (fake_launch())
		fake_enqueue(static_cast<cudaStream_t>(queue), [=] {
			const fake_time takes(bytes, "FAKE_CUDA_RATE");
			work();
		});
}

/* Four bytes of each array for the largest number among the arguments. */
template <class... T> double array_bytes(const T &...v)
{
	double n = 0, arrays = 0;
	auto look = [&](const auto &x) {
		using X = std::decay_t<decltype(x)>;
		if constexpr (std::is_pointer_v<X>)
			arrays++;
		else if constexpr (std::is_integral_v<X> && sizeof(X) == 8)
			n = double(x) > n ? double(x) : n;
	};
	(look(v), ...);
	return 4 * n * arrays;
}

/* So many bytes for each number of all parts. */
template <class T> double all_bytes(const std::vector<T> &parts, double each)
{
	double n = 0;
	for (const auto &p : parts)
		n += double(p.n);
	return each * n;
}

template <auto M> struct later;
template <class R, class... A, R (*gradcomp_operators::*M)(void *, A...)> struct later<M> {
	static R call(void *queue, A... a)
	{
		run(queue, kept<A>{a}...);
		if constexpr (!std::is_void_v<R>)
			return R(0);
	}
	static void run(void *queue, kept<A>... a)
	{
		enqueue(queue, array_bytes(a.v...), [=] { (host()->*M)(nullptr, a.get()...); });
	}
};

/* Scratch takes more here than on the host, by this much a number; what was
 * asked for is there and is written to, so that who asks the host's table is
 * found out. */
enum { ROOM = 4096 };
struct room {
	void *v;
	void *get() const { return memset(fake_at(v, ROOM), 0x5a, ROOM); }
};
template <auto M> struct with_room;
template <class... A, void (*gradcomp_operators::*M)(void *, A...)> struct with_room<M> {
	static void call(void *queue, A... a)
	{
		split(queue, std::make_index_sequence<sizeof...(A) - 1>(), std::make_tuple(a...));
	}
	template <size_t... I> static void split(void *queue, std::index_sequence<I...>, std::tuple<A...> t)
	{
		run(queue, room{std::get<sizeof...(A) - 1>(t)},
		    kept<std::tuple_element_t<I, std::tuple<A...>>>{std::get<I>(t)}...);
	}
	template <class... K> static void run(void *queue, room r, K... k)
	{
		enqueue(queue, array_bytes(k.v...), [=] { (host()->*M)(nullptr, k.get()..., r.get()); });
	}
};
template <auto M> struct more_room;
template <class... A, size_t (*gradcomp_operators::*M)(A...)> struct more_room<M> {
	static size_t call(A... a) { return ROOM + (host()->*M)(a...); }
};

/* Either side may be plain memory of the host's. */
void copy(void *queue, void *to, const void *from, size_t bytes)
{
	if (fake_launch())
		cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(queue));
}

/* Unknown pairs of type and operation are refused at once. */
gradcomp_status reduce(void *queue, void *acc, const void *in, size_t n, gradcomp_dtype dtype, gradcomp_op op)
{
	char none[8] = {0};
	gradcomp_status st = host()->reduce(nullptr, none, none, 0, dtype, op);
	return st ? st : later<&gradcomp_operators::reduce>::call(queue, acc, in, n, dtype, op);
}

/* Matrices in many places. */
struct places {
	std::vector<float *> at;
	template <class P> places(P const *from, size_t count) : at(count)
	{
		for (size_t i = 0; from && i < count; i++)
			at[i] = const_cast<float *>(from[i]);
		if (!from)
			at.clear();
	}
	std::vector<float *> real() const
	{
		std::vector<float *> r;
		for (float *p : at)
			r.push_back(static_cast<float *>(fake_at(p)));
		return r;
	}
};

template <auto M>
void products(void *queue, float *const *P, const float *const *A, const float *const *B, size_t count, size_t n,
              size_t m, size_t r, void *scratch)
{
	places p(P, count), a(A, count), b(B, count);
	enqueue(queue, 4.0 * double(count) * double(n * m + (n + m) * r), [=] {
		auto x = p.real(), y = a.real(), z = b.real();
		(host()->*M)(nullptr, x.data(), y.data(), z.data(), count, n, m, r, room{scratch}.get());
	});
}

void finish_batch(void *queue, float *const *X, float *const *E, const float *const *P, const float *const *L,
                  const float *const *Q, size_t count, size_t n, size_t m, size_t r)
{
	places x(X, count), e(E, count), p(P, count), l(L, count), q(Q, count);
	enqueue(queue, (E ? 12.0 : 8.0) * double(count * n * m), [=] {
		auto xr = x.real(), er = e.real(), pr = p.real(), lr = l.real(), qr = q.real();
		host()->low_rank_finish_batch(nullptr, xr.data(), er.empty() ? nullptr : er.data(), pr.data(),
		                              lr.empty() ? nullptr : lr.data(), qr.data(), count, n, m, r);
	});
}

void orthonormalise_split(void *queue, float *const *A, size_t count, size_t n, size_t r, void *scratch)
{
	places a(A, count);
	enqueue(queue, 8.0 * double(count * n * r), [=] {
		auto x = a.real();
		host()->orthonormalise_split(nullptr, x.data(), count, n, r, room{scratch}.get());
	});
}

void normalise_columns_batch(void *queue, float *const *A, size_t count, size_t n, size_t r, float length)
{
	places a(A, count);
	enqueue(queue, 12.0 * double(count * n * r), [=] {
		auto x = a.real();
		host()->normalise_columns_batch(nullptr, x.data(), count, n, r, length);
	});
}

std::vector<gradcomp_matrix> real_matrices(std::vector<gradcomp_matrix> t)
{
	for (auto &m : t)
		m.x = static_cast<float *>(fake_at(m.x));
	return t;
}

double matrix_bytes(const std::vector<gradcomp_matrix> &t)
{
	double n = 0;
	for (const auto &m : t)
		n += double(m.n * m.m);
	return 4 * n;
}

void dct_topk(void *queue, float *val, uint16_t *place, const gradcomp_matrix *t, size_t count, uint32_t chunk,
              uint32_t k)
{
	const std::vector<gradcomp_matrix> all(t, t + count);
	enqueue(queue, matrix_bytes(all), [=] {
		host()->dct_topk(nullptr, static_cast<float *>(fake_at(val)), static_cast<uint16_t *>(fake_at(place)),
		                 real_matrices(all).data(), all.size(), chunk, k);
	});
}

void dct_back(void *queue, const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t k,
              const gradcomp_coefficients *from, size_t ranks, float a, uint32_t flags, int *fault)
{
	const std::vector<gradcomp_matrix> all(t, t + count);
	std::vector<gradcomp_coefficients> sent(from, from + ranks);
	enqueue(queue, matrix_bytes(all), [=]() mutable {
		for (auto &s : sent) {
			s.val = static_cast<const float *>(fake_at(s.val));
			s.place = static_cast<const uint16_t *>(fake_at(s.place));
		}
		host()->dct_back(nullptr, real_matrices(all).data(), all.size(), chunk, k, sent.data(), sent.size(), a,
		                 flags, static_cast<int *>(fake_at(fault)));
	});
}

/* Tensors, and pairs, in many places. */
std::vector<gradcomp_segment> real_segments(std::vector<gradcomp_segment> t)
{
	for (auto &s : t) {
		s.x = static_cast<float *>(fake_at(s.x));
		s.grad = fake_at(s.grad);
		s.error = static_cast<const float *>(fake_at(s.error));
	}
	return t;
}

size_t tensors_scratch(const gradcomp_segment *, size_t count)
{
	return 64 * count;
}

gradcomp_status load_tensors(void *queue, const gradcomp_segment *t, size_t count, int *bad, double *squares,
                             void *scratch)
{
	const std::vector<gradcomp_segment> all(t, t + count);
	enqueue(queue, all_bytes(all, 12), [=] {
		fake_at(scratch, 64 * all.size());
		host()->load_tensors(nullptr, real_segments(all).data(), all.size(), static_cast<int *>(fake_at(bad)),
		                     static_cast<double *>(fake_at(squares)), nullptr);
	});
	return host()->load_tensors(nullptr, t, 0, nullptr, nullptr, nullptr);
}

gradcomp_status store_tensors(void *queue, const gradcomp_segment *t, size_t count, const int *poison, double *squares,
                              void *scratch)
{
	const std::vector<gradcomp_segment> all(t, t + count);
	enqueue(queue, all_bytes(all, 8), [=] {
		fake_at(scratch, 64 * all.size());
		host()->store_tensors(nullptr, real_segments(all).data(), all.size(),
		                      static_cast<const int *>(fake_at(poison)),
		                      static_cast<double *>(fake_at(squares)), nullptr);
	});
	return host()->store_tensors(nullptr, t, 0, nullptr, nullptr, nullptr);
}

void act_if(void *queue, const gradcomp_act *act, size_t count, float a, const int *word)
{
	std::vector<gradcomp_act> all(act, act + count);
	enqueue(queue, 0, [=]() mutable {
		for (auto &t : all) {
			const bool fills = t.kind < GRADCOMP_ACT_FIND;
			t.to = fake_at(t.to);
			t.by = fills ? nullptr : static_cast<const int *>(fake_at(t.by));
			t.from = fills ? nullptr : fake_at(t.from);
		}
		host()->act_if(nullptr, all.data(), all.size(), a, static_cast<const int *>(fake_at(word)));
	});
}

void sparse_sum(void *queue, const gradcomp_sparse *part, size_t parts, const gradcomp_pairs *pairs, size_t ranks,
                float a, int *fault)
{
	std::vector<gradcomp_sparse> to(part, part + parts);
	std::vector<gradcomp_pairs> from(pairs, pairs + parts * ranks);
	enqueue(queue, all_bytes(to, 4), [=]() mutable {
		for (auto &p : to)
			p.y = static_cast<float *>(fake_at(p.y));
		for (auto &p : from) {
			p.idx = static_cast<const uint32_t *>(fake_at(p.idx));
			p.val = static_cast<const float *>(fake_at(p.val));
		}
		host()->sparse_sum(nullptr, to.data(), to.size(), from.data(), from.size() / to.size(), a,
		                   static_cast<int *>(fake_at(fault)));
	});
}

void codes_sum(void *queue, const gradcomp_coding *coding, const gradcomp_coded *part, size_t parts,
               const void *const *payload, size_t ranks, float a, int *fault)
{
	const gradcomp_quantiser none = {};
	const gradcomp_levels no_levels = {};
	const gradcomp_coding kind = *coding;
	const kept<const gradcomp_quantiser *> q(coding->quantiser ? coding->quantiser : &none);
	const kept<const gradcomp_levels *> l(coding->levels ? coding->levels : &no_levels);
	const std::vector<gradcomp_coded> all(part, part + parts);
	const std::vector<const void *> sent(payload, payload + ranks);
	enqueue(queue, all_bytes(all, 4 + double(ranks)), [=] {
		auto real = all;
		auto from = sent;
		gradcomp_coding as = kind;
		as.quantiser = q.get();
		as.levels = l.get();
		for (auto &p : real) {
			p.y = static_cast<float *>(fake_at(p.y));
			p.x = static_cast<const float *>(fake_at(p.x));
			p.scale = static_cast<const float *>(fake_at(p.scale));
		}
		for (auto &p : from)
			p = fake_at(p);
		host()->codes_sum(nullptr, &as, real.data(), real.size(), from.data(), from.size(), a,
		                  static_cast<int *>(fake_at(fault)));
	});
}

/* Each operator is a kernel, which the module tells CUDA of. */
template <auto M> char kernel;
template <auto M, auto F, class TYPE = decltype(F)> struct loads;
template <auto M, auto F, class R, class... A> struct loads<M, F, R (*)(A...)> {
	static R call(A... a)
	{
		fake_load(&kernel<M>);
		return F(a...);
	}
};

template <auto M> constexpr auto function_of = later<M>::call;
#define OWN(name) template <> constexpr auto function_of<&gradcomp_operators::name> = name;
// clang-format off
OWN(copy) OWN(reduce) OWN(load_tensors) OWN(store_tensors) OWN(act_if) OWN(sparse_sum)
OWN(codes_sum) OWN(normalise_columns_batch) OWN(dct_topk) OWN(dct_back)
#undef OWN
#define OWN(name, function) template <> constexpr auto function_of<&gradcomp_operators::name> = function;
OWN(product_mq_batch, products<&gradcomp_operators::product_mq_batch>)
OWN(product_mtp_batch, products<&gradcomp_operators::product_mtp_batch>)
OWN(low_rank_finish_batch, finish_batch)
OWN(orthonormalise_split, orthonormalise_split)
#define ROOMY(name) OWN(name, with_room<&gradcomp_operators::name>::call)
ROOMY(topk) ROOMY(sum_abs) ROOMY(sum_squares) ROOMY(absmax) ROOMY(mstopk) ROOMY(sparse_merge) ROOMY(index_unpack)
	// clang-format on

	/* Sizes of results touch no memory and stay as they are. */
	gradcomp_operators make()
{
	gradcomp_operators t = *host();
	t.device = GRADCOMP_CUDA;
#define GRADCOMP_OPERATOR(result, name, promise, host, parameters, arguments) \
	CHECKED(t, name, (loads<&gradcomp_operators::name, function_of<&gradcomp_operators::name>>::call)); \
	__cudaRegisterFunction(nullptr, &kernel<&gradcomp_operators::name>, nullptr, #name, -1, nullptr, nullptr, \
	                       nullptr, nullptr, nullptr);
#define GRADCOMP_SCRATCH(name, parameters, arguments) t.name = more_room<&gradcomp_operators::name>::call;
#include "gradcomp/operators.def"
	t.tensors_scratch = tensors_scratch;
	t.failed = checked_failed;
	return t;
}

const gradcomp_operators table = make();

} // namespace

extern "C" GRADCOMP_EXPORT const cuda_module gradcomp_operators_cuda;
const cuda_module gradcomp_operators_cuda = {sizeof(cuda_module), CUDA_MODULE_VERSION, &table, cuda_missing};
