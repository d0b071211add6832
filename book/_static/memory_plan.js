/* The planner's formulas (speedlab.memory_plan, speedlab.memory_activations), for a page without Python.

   Written a second time, and therefore held against the first: a test compares the two over random recipes, and a page
   that uses them compares every rung before it shows a number. Functions have the names of the originals, which explain
   each term. Sizes of blocks and workspaces (`known`) come from the package with the page. */
(function () {
  "use strict";
  const speedlab = (globalThis.speedlab ??= {});
  const FLOAT32 = 4, SIXTEEN_BITS = 2, INT64 = 8, BOOL = 1;

  const total = (parts) => Object.values(parts).reduce((sum, bytes) => sum + bytes, 0);
  const writtenOut = (recipe) => recipe.attention === "plain" || recipe.attention === "sdpa_math";

  function paddedVocabSize(recipe, known) {
    if (recipe.vocabulary === "exact") return recipe.vocab_size;
    return Math.ceil(recipe.vocab_size / known.vocabulary_multiple) * known.vocabulary_multiple;
  }

  function sizesOf(recipe, known) {
    const rows = recipe.micro_batch * recipe.context_length;
    const autocast = recipe.precision.endsWith("_autocast");
    const stream = autocast || recipe.precision === "float32" ? FLOAT32 : SIXTEEN_BITS;
    return {
      rows, autocast, stream, compiled: recipe.compile !== "off", compute: autocast ? SIXTEEN_BITS : stream,
      width: rows * recipe.embedding_width, square: rows * recipe.num_heads * recipe.context_length,
      vocabulary: paddedVocabSize(recipe, known), native: recipe.layers === "native",
    };
  }

  function layerNorm(size, inputs = 1) {
    const read = (size.autocast && !size.compiled ? inputs : 1) * size.width * size.compute;
    if (size.compiled) return read + size.width * size.stream + 2 * size.rows * size.stream;
    if (size.native) return read + size.width * size.stream + 2 * size.rows * FLOAT32;
    return read + 3 * size.width * size.stream + size.rows * size.stream;
  }

  function scores(recipe, size) {
    const upcast = recipe.attention === "sdpa_math" || (size.autocast && !size.compiled);
    const read = recipe.attention === "sdpa_math" ? FLOAT32 : size.compute;
    let bytes = size.square * (upcast ? FLOAT32 : size.compute);
    if (recipe.dropout) bytes += size.square * BOOL;
    if (recipe.dropout || size.autocast) bytes += size.square * read;
    if (recipe.attention === "plain") bytes += recipe.context_length ** 2 * BOOL;
    return bytes;
  }

  function attention(recipe, size) {
    const output = size.width * size.compute;
    return output + (writtenOut(recipe) ? scores(recipe, size) : size.rows * recipe.num_heads * FLOAT32);
  }

  function feedForward(size) {
    const inner = 4 * size.width;
    return size.native || size.compiled ? 2 * inner * size.compute : inner * (3 * size.stream + 2 * size.compute);
  }

  function keptByBlock(recipe, size) {
    return {
      "layer norms": layerNorm(size, recipe.qkv_projection === "separate" ? 3 : 1) + layerNorm(size),
      "q, k, v": 3 * size.width * (recipe.attention === "sdpa_math" ? FLOAT32 : size.compute),
      attention: attention(recipe, size),
      "feed-forward": feedForward(size),
      "dropout masks": recipe.dropout ? 2 * size.width * BOOL : 0,
    };
  }

  function keptOutsideBlocks(recipe, size) {
    const positions = size.compiled ? recipe.context_length * recipe.embedding_width * size.stream : 0;
    return {
      embeddings: (size.rows + recipe.context_length) * INT64 + positions + (recipe.dropout ? size.width * BOOL : 0),
      "last layer norm": layerNorm(size),
      "cast weights": castWeights(recipe, size),
    };
  }

  const castInBlock = (recipe, size) => (size.autocast ? 12 * recipe.embedding_width ** 2 * SIXTEEN_BITS : 0);

  function castWeights(recipe, size) {
    if (!size.autocast) return 0;
    const kind = recipe.checkpointing, all = recipe.num_layers * castInBlock(recipe, size);
    let kept = all;
    if (kind === "every_block" || kind === "selective" || kind === "offload") kept = 0;
    else if (kind === "every_second_block") kept = Math.floor(recipe.num_layers / 2) * castInBlock(recipe, size);
    else if (kind === "feed_forward") kept = all / 3;
    return kept + SIXTEEN_BITS * size.vocabulary * recipe.embedding_width;
  }

  function paddedHead(recipe, size) {
    const multiple = 16 / size.compute;
    if (!size.compiled || size.vocabulary % multiple === 0) return 0;
    return Math.ceil(size.vocabulary / multiple) * multiple * recipe.embedding_width * size.compute;
  }

  function selected(recipe, size) {
    const matmuls = 9 * size.width * size.compute;
    if (writtenOut(recipe)) return matmuls;
    return matmuls + attention(recipe, size) + (recipe.dropout ? 2 * size.width * (size.compute + BOOL) : 0);
  }

  function keptActivations(recipe, size) {
    const kind = recipe.checkpointing, layers = recipe.num_layers, whole = total(keptByBlock(recipe, size));
    const lean = kind === "every_second_block" ? Math.floor((layers + 1) / 2) : kind === "off" ? 0 : layers;
    let bytes = (layers - lean) * whole + lean * size.width * size.stream;
    if (kind === "offload") bytes = 0;
    else if (kind === "feed_forward") bytes = layers * (whole - feedForward(size));
    else if (kind === "selective") bytes += lean * selected(recipe, size);
    return bytes + total(keptOutsideBlocks(recipe, size)) + paddedHead(recipe, size);
  }

  function recomputedInBlock(recipe, size) {
    const kind = recipe.checkpointing, whole = total(keptByBlock(recipe, size));
    if (kind === "off" || kind === "offload") return 0;
    if (kind === "feed_forward") return feedForward(size) + castInBlock(recipe, size) * 2 / 3;
    if (kind === "every_second_block" && recipe.num_layers % 2 === 0) return 0;
    return whole + castInBlock(recipe, size) - (kind === "selective" ? selected(recipe, size) : 0);
  }

  function totalParameters(recipe, size) {
    const width = recipe.embedding_width;
    const matmuls = recipe.num_layers * 12 * width ** 2 + size.vocabulary * width;
    const tables = (recipe.output_head === "untied" ? size.vocabulary : 0) * width + recipe.context_length * width;
    const biases = 6 * width + (recipe.qkv_bias ? 3 * width : 0);
    return matmuls + tables + recipe.num_layers * (biases + 4 * width) + 2 * width;
  }

  function parameterTensors(recipe) {
    const projections = recipe.qkv_projection === "merged" ? 1 : 3;
    const perLayer = projections * (recipe.qkv_bias ? 2 : 1) + 10;
    return recipe.num_layers * perLayer + 4 + (recipe.output_head === "untied" ? 1 : 0);
  }

  const weightBytes = (recipe) => (/^bfloat16(_master)?$/.test(recipe.precision) ? SIXTEEN_BITS : FLOAT32);

  function optimizerBytes(recipe, size, known) {
    const masters = recipe.precision === "bfloat16_master";
    const updated = masters ? FLOAT32 : weightBytes(recipe);
    const bytes = totalParameters(recipe, size) * (2 * updated + (masters ? FLOAT32 : 0));
    return bytes + (recipe.optimizer === "fused" ? parameterTensors(recipe) * known.smallest_block : 0);
  }

  function updateBytes(recipe, size) {
    const masters = recipe.precision === "bfloat16_master";
    const updated = masters ? FLOAT32 : weightBytes(recipe);
    const parameters = totalParameters(recipe, size);
    let bytes = masters ? parameters * FLOAT32 : 0;
    if (recipe.optimizer === "default" || recipe.optimizer === "foreach") bytes += parameters * updated;
    if (recipe.optimizer === "for_loop") bytes += 2 * size.vocabulary * recipe.embedding_width * updated;
    return bytes;
  }

  function lossBytes(size) {
    const formats = size.autocast ? size.compute + 2 * FLOAT32 : 3 * size.stream;
    return size.rows * size.vocabulary * formats + size.rows * INT64;
  }

  function blockBackward(recipe, size) {
    const inner = 4 * size.width * size.compute * (size.native || size.compiled ? 1 : 3);
    let squares = 0;
    if (writtenOut(recipe)) {
      if (size.autocast && !size.compiled) squares = (3 * FLOAT32 - SIXTEEN_BITS) * size.square;
      else if (size.compiled) squares = size.square * size.compute * (recipe.dropout ? 1 : 2);
      else squares = size.square * (recipe.dropout ? 2 * size.compute - BOOL : 3 * size.compute);
      squares -= feedForward(size) + layerNorm(size);
    }
    return 2 * size.width * size.stream + Math.max(inner, squares);
  }

  /* {moments: {moment: {component: bytes}}, peakAt, parts, peakBytes} of one GPU. capability: of the card, [9, 0]. */
  speedlab.planMemory = function (recipe, capability, known) {
    const size = sizesOf(recipe, known);
    const weight = weightBytes(recipe);
    const weights = totalParameters(recipe, size) * weight;
    const buckets = recipe.data_parallel > 1 ? weights : 0;
    const workspace = known.workspace_threads * (capability[0] >= 9 ? known.large_workspace : known.small_workspace);
    const storesMask = recipe.attention === "plain" && recipe.causal_mask === "stored";
    const standing = {
      weights, optimizer: optimizerBytes(recipe, size, known),
      buffers: storesMask ? recipe.num_layers * recipe.context_length ** 2 * weight : 0,
    };
    const kept = keptActivations(recipe, size);
    const before = (recipe.accumulation > 1 ? weights : 0) + buckets;
    const table = size.vocabulary * recipe.embedding_width * weight;
    const moment = (gradients, activations = 0, logits = 0, extra = 0) =>
      ({ ...standing, gradients, activations, logits, workspace: workspace + extra });
    const moments = {
      loss: moment(before, kept, lossBytes(size)),
      backward: moment(before + table, kept - layerNorm(size) + recomputedInBlock(recipe, size), 0,
        blockBackward(recipe, size)),
      "end of backward": moment(weights + buckets, 0, 0,
        (recipe.output_head === "tied" ? table : 0) + 2 * size.width * size.stream),
      optimizer: moment(weights + buckets, 0, 0, updateBytes(recipe, size)),
    };
    const peakAt = Object.keys(moments).reduce((most, name) => (total(moments[name]) > total(moments[most]) ? name : most));
    return { moments, peakAt, parts: moments[peakAt], peakBytes: total(moments[peakAt]) };
  };

  /* Bytes of the card that a recipe is predicted to need, reserve included (speedlab.memory_fit). */
  speedlab.neededBytes = function (recipe, card, known) {
    const plain = recipe.precision.endsWith("_autocast") ? known.autocast_share : known.allocator_share;
    const share = known.cuda_graphs.includes(recipe.compile) ? known.graphs_share : plain;
    return Math.round(speedlab.planMemory(recipe, card.capability, known).peakBytes * (1 + share)) + known.context_bytes;
  };

  /* The largest micro-batch that fits, 0 if none does. */
  speedlab.largestMicroBatch = function (recipe, card, known) {
    const fits = (batch) => speedlab.neededBytes({ ...recipe, micro_batch: batch }, card, known) <= card.memory_gib * 2 ** 30;
    let low = 0, high = 1;
    while (high <= known.largest_micro_batch && fits(high)) [low, high] = [high, 2 * high];
    high = Math.min(high, known.largest_micro_batch + 1);
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (fits(middle)) low = middle;
      else high = middle;
    }
    return low;
  };
})();
