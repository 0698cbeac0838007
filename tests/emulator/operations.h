// What device code asks of the emulator: barriers, warp operations, fences, shared memory, asynchronous copies.
// Part of runtime.cpp.
#pragma once

#include "fibres.h"

namespace emulator {

// ── barriers and warps ──────────────────────────────────────────────────────────────────────────

int sync_threads(int line, int predicate, Reduce reduce) {
  Fibre* fibre = me();
  Block* block = fibre->block;
  fibre->line = line;
  if (block->arrived == 0) {
    block->line = line;
    block->reduced = reduce == Reduce::AND;
  } else if (block->line != line) {
    fail("threads of one block meet at different barriers, lines %d and %d", block->line, line);
  }
  if (reduce == Reduce::COUNT) block->reduced += predicate != 0;
  if (reduce == Reduce::AND) block->reduced &= predicate != 0;
  if (reduce == Reduce::OR) block->reduced |= predicate != 0;
  char* order = &block->order[block->epoch & 1];
  release(order);
  if (++block->arrived == block->alive) {
    for (Fibre* other : block->fibres) other->result = block->reduced;
    open_barrier(block);
  } else {
    fibre->state = State::AT_BARRIER;
    yield();
  }
  acquire(order);
  return fibre->result;
}

static void run_for_all(Warp* warp, Fibre* last, Execute execute, int aux) {
  void* records[32];
  for (int lane = 0; lane < 32; lane++) {
    records[lane] = nullptr;
    if (!(last->mask >> lane & 1)) continue;
    Fibre* other = warp->fibres[lane];
    if (other->kind != last->kind || other->mask != last->mask || (other->line != last->line && last->kind != SYNC))
      fail("lanes of one warp part: lane %d is at line %d, lane %d at line %d", last->lane, last->line, lane, other->line);
    records[lane] = other->record;
  }
  if (AnnotateIgnoreReadsBegin) { AnnotateIgnoreReadsBegin("", 0); AnnotateIgnoreWritesBegin("", 0); }
  execute(records, aux);
  if (AnnotateIgnoreReadsBegin) { AnnotateIgnoreReadsEnd("", 0); AnnotateIgnoreWritesEnd("", 0); }
}

void warp_operation(int kind, uint32_t mask, void* record, Execute execute, int aux, int line, bool orders_memory) {
  Fibre* fibre = me();
  Warp* warp = fibre->warp;
  mask &= warp->exists;
  if (!(mask >> fibre->lane & 1)) fail("line %d: lane %d is not in its own mask %08x", line, fibre->lane, mask);
  fibre->kind = kind;
  fibre->mask = mask;
  fibre->record = record;
  fibre->line = line;
  char* order = &warp->order[warp->epoch & 1];
  if (orders_memory) release(order);
  uint32_t here = (warp->waiting | 1u << fibre->lane) & mask;
  if (here == mask) {
    run_for_all(warp, fibre, execute, aux);
    warp->waiting &= ~mask;
    warp->epoch++;
    for (int lane = 0; lane < 32; lane++)
      if (mask >> lane & 1 && lane != fibre->lane) make_ready(warp->fibres[lane]);
  } else {
    warp->waiting |= 1u << fibre->lane;
    fibre->state = State::IN_WARP;
    yield();
  }
  if (orders_memory) acquire(order);
}

void spin() {
  make_ready(me());
  yield();
}

// ── race model: atomics alone order nothing; a fence makes earlier atomic reads acquires, later writes releases ──

void fence() {
  Fibre* fibre = me();
  fibre->releases = true;
  int known = fibre->num_atomics < MAX_ATOMICS ? fibre->num_atomics : MAX_ATOMICS;
  for (int i = 0; i < known; i++) acquire(const_cast<void*>(fibre->to_acquire[i]));
  fibre->num_atomics = 0;
}
void before_atomic(const volatile void* place) {
  if (me()->releases) release(const_cast<void*>(place));
}
void after_atomic(const volatile void* place) {
  Fibre* fibre = me();
  fibre->to_acquire[fibre->num_atomics++ % MAX_ATOMICS] = const_cast<const void*>(place);
}

// ── shared memory: poisoned with 0xff (nan in every float type), with red zones ─────────────────

static char* carve(Block* block, size_t bytes) {
  size_t start = (block->used + 127) & ~size_t(127);
  if (start + bytes + RED_ZONE_BYTES > ARENA_BYTES) fail("%zu bytes of shared memory do not fit", bytes);
  block->used = start + bytes + RED_ZONE_BYTES;
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(block->arena + start, bytes);
  return block->arena + start;
}
void* shared_array(int id, size_t bytes) {
  Block* block = me()->block;
  for (SharedArray& array : block->arrays)
    if (array.id == id) return array.place;
  if (block->arrays.size() == MAX_SHARED_ARRAYS) fail("more than %d shared arrays", MAX_SHARED_ARRAYS);
  block->arrays.push_back({id, carve(block, bytes)});
  return block->arrays.back().place;
}
void* dynamic_shared() { return me()->block->arena; }
void count_bank_conflict(int, int ways) { num_bank_conflicts += ways - 1; }

// ── asynchronous copies ─────────────────────────────────────────────────────────────────────────

static void land_plainly(void* target, const void* source, int bytes, int valid) {
  for (int i = 0; i < bytes; i++)
    static_cast<volatile char*>(target)[i] = i < valid ? static_cast<const volatile char*>(source)[i] : 0;
}
void (*land_copy)(void*, const void*, int, int) = land_plainly;  // the sanitizer drivers replace it by an instrumented one

void copy_async(void* target, const void* source, int bytes, int valid) {
  if ((reinterpret_cast<uintptr_t>(target) | (valid ? reinterpret_cast<uintptr_t>(source) : 0)) & uintptr_t(bytes - 1))
    fail("an asynchronous copy of %d bytes is not aligned", bytes);
  Fibre* fibre = me();
  if (fibre->num_copies == MAX_COPIES) fail("more than %d asynchronous copies of one thread are under way", MAX_COPIES);
  memset(target, 0xff, size_t(bytes));
  fibre->copies[fibre->num_copies++] = {target, source, bytes, valid, fibre->group};
}
void copy_async_commit() { me()->group++; }
void copy_async_wait(int groups_left) {
  Fibre* fibre = me();
  int kept = 0;
  for (int i = 0; i < fibre->num_copies; i++) {
    const Copy copy = fibre->copies[i];
    if (copy.group < fibre->group - groups_left) land_copy(copy.target, copy.source, copy.bytes, copy.valid);
    else fibre->copies[kept++] = copy;
  }
  fibre->num_copies = kept;
}

}  // namespace emulator
