"""Kernels by name, as profilers of several generations of cards report them, and the table of a real step."""

import pytest
import torch
from model_helper import CPU, TINY, draw_weights, random_batches

from speedlab.measuring.kernels import CPU_KINDS, GPU_KINDS, in_format, kernel_row, kernel_table, kind_of, short_name
from speedlab.records.record import KERNEL_KINDS
from speedlab.training.step import TrainingStep

GPU = {
    "matmul, Tensor Cores": [
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
        "nvjet_hsh_256x128_64x4_2x1_v_bz_coopB_NTT",
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn",
        "ampere_s1688gemm_128x128_nt",
        "turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn",
        "turing_h1688gemm_128x128_ldg8_nn",
        "volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_tn",
        "volta_h884gemm_64x128_ldg8_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4>"
        "(cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4::Params)",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)",
        "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_1x2x1_0_tnn_align8_warpspecialized",
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
        "sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize64x64x64_stage5_warpsize2x2x1_tensor16x8x16_kernel",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x8_kernel",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
        "__5x_cublas",
        "sm90_xmma_gemm_f16f16_f16f32_f32_nt_n_tilesize64x128x64_warpgroupsize1x1x1_bias_bf16_execute_kernel__5x_cublas",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_warpgroupsize1x1x1_execute_kernel__5x_cublas",
        "nvjet_sm90_tst_192x192_64x3_2x1_v_bz_coopB_splitK_NTN",
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT",
        "nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_coopA_TNN",
        "nvjet_sm100_tst_64x32_64x16_2x1_2cta_h_bz_TNT",
        "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(Params)",
        "void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_256x128_nn_align1>(Params)",
        "void cutlass::Kernel2<cutlass_70_tensorop_f16_s884gemm_f16_128x128_tn_align1>(Params)",
        "turing_fp16_s1688gemm_fp16_128x64_sliced1x2_ldg8_f2f_tn",
        "turing_fp16_s884gemm_fp16_64x64_ldg8_f2f_nn",
        "sm75_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage1_warpsize2x2x1_tensor16x8x8_kernel",
        "triton_tem_fused_addmm_3",
    ],
    "matmul, ordinary": [
        "ampere_sgemm_128x64_tn",
        "ampere_sgemm_32x32_sliced1x4_nn",
        "volta_sgemm_128x64_nt",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel"
        "__5x_cublas",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)",
        "ampere_sgemm_64x32_sliced1x4_tn",
        "volta_fp16_sgemm_fp16_128x64_tn",
        "void cutlass::Kernel2<cutlass_75_simt_f16_sgemm_f16_128x64_8x2_tn_align1>(Params)",
        "std::enable_if<true, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, float, "
        "false, 7, false>(cublasGemvParamsEx<int>)",
        "void gemmk1_kernel<int, float, 256, 5, false, false, false, false>(cublasGemmk1Params<float>)",
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>(cublasGemmSmallNParams<float>)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(cublasGemvParamsEx<int>)",
    ],
    "attention, flash": [
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
        "cutlass::bfloat16_t>, true, true, false, false, true, false>(pytorch_flash::Flash_fwd_params)",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<64, "
        "128, 128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t>, true>(pytorch_flash::Flash_bwd_params)",
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4>>(Flash_fwd_params)",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<CollectiveMainloopFwdSm90<2>>>>()",
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_FlashAttentionForwardSm90_object_at_tensorptrbf16",
        "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64>>(Flash_bwd_params)",
        "void pytorch_flash::flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<64>>(Flash_bwd_params, int)",
    ],
    "attention, cudnn": [
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_128x128x64_1x1x1_cga1x1x1_kernel0_0",
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_f16_knob_30_64x64x64_4x1x1_kernel0_0",
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x128_4x1x1_kernel0_0",
        "cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_31_128x128x64_kernel0_0",
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*, void const*, void*, void const*)",
        "void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*, unsigned int, unsigned int, float)",
        "at::cuda::philox::unpack_cudnn(at::PhiloxCudaState, long*, long*)",
    ],
    "attention, efficient": [
        "fmha_cutlassF_f16_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t, "
        "cutlass::arch::Sm75, true, 64, 64, 64, true, true>::Params)",
        "fmha_cutlassB_bf16_aligned_128x64_k64_dropout_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<"
        "cutlass::bfloat16_t, cutlass::arch::Sm80, true, true, true, 128, 64, 64, false>::Params)",
        "fmha_cutlassB_f16_aligned_64x64_k64_dropout_sm75(PyTorchMemEffAttention::AttentionBackwardKernel<half_t>::Params)",
        "void PyTorchMemEffAttention::attention_kernel_batched_impl<AttentionKernel<float>>(Params)",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4, (ADAM_MODE)1, false>>(...)",
        "void at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double, double, int)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, UnaryOp<half>>()",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpScalarFunctor"
        "<float, 2, 1, 1>, std::multiplies<float>, float>(...)",
    ],
    "fused": [
        "triton_poi_fused_add_native_dropout_3",
        "gelu_backward_kernel",
        "residual_norm_forward_kernel",
        "join_kernel",
        "triton_per_fused_add_native_layer_norm_4",
        "triton_red_fused__log_softmax_nll_loss_forward_7",
        "triton_poi_fused__scaled_dot_product_cudnn_attention_transpose_view_9",
        "triton_poi_fused__scaled_dot_product_flash_attention_backward_clone_2",
        "triton_poi_fused_add_mul_pow_tanh_11",
        "triton_poi_fused_embedding_dense_backward_0",
        "triton_poi_fused_mm_t_1",
        "triton_red_fused__to_copy_native_layer_norm_backward_5",
        "triton_for_fused_1",
    ],
    "normalization": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, float)",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>(...)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float, 64u>(...)",
        "void at::native::(anonymous namespace)::cuComputePartGradGammaBeta<float, float>(...)",
    ],
    "softmax and loss": [
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, float const*)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16, "
        "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(...)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float, float, float>(...)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(...)",
    ],
    "embedding": [
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(...)",
        "void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>(char*, char*, long*)",
        "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<...>(...)",
        "void cub::CUB_300001_SM_900::detail::radix_sort::DeviceRadixSortHistogramKernel<policy_hub<long>>(...)",
        "void at_cuda_detail::cub::detail::reduce::DeviceReduceByKeyKernel<policy_hub<long>>(...)",
        "void at_cuda_detail::cub::EmptyKernel<void>()",
        "void at::native::(anonymous namespace)::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true>(...)",
        "void at_cuda_detail::cub::detail::unique_by_key::DeviceUniqueByKeySweepKernel<...>(...)",
        "void at_cuda_detail::cub::detail::scan::DeviceCompactInitKernel<at_cuda_detail::cub::ScanTileState<int>>(...)",
        "void at::native::(anonymous namespace)::compute_num_of_partial_segments<long>(long const*, long const*)",
        "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(...)",
        "void at::native::(anonymous namespace)::sum_and_scatter<c10::BFloat16, long>(...)",
    ],
    "copy": [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
        "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(...)>(int)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_alignedK_contig<OpaqueType<2u>, 3, 64, 64>(...)",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, "
        "unsigned int, float, 4>>(...)",
        "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, sum_functor<float>>>(...)",
        "void at_cuda_detail::cub::detail::reduce::DeviceReduceSingleTileKernel<policy_hub<float>>(...)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false, float, "
        "__nv_bfloat16, __nv_bfloat16, true, false, false>(cublasLt::cublasSplitKParams<float>)",
    ],
    "element-wise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<BinaryFunctor<float>>>(int)",
        "void at::native::unrolled_elementwise_kernel<MulFunctor<float>, std::array<char*, 3>>(...)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>>(...)",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(...)",
        "void cublasLt::epilogue::impl::globalKernel<8, 32, float, float, float, true, true, 1>(cublasLtEpilogue_t)",
        "void at::native::triu_tril_kernel<bool, int, true, 8, false>(...)",
        "void at::native::elementwise_kernel<128, 4, masked_fill_kernel(at::TensorIterator&)>(int)",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(ncclSymkDevWorkArgs4K)",
    ],
    "other": ["void a_kernel_that_nobody_has_seen<int>(int*)"],
}  # fmt: skip
CPU_OPERATORS = {
    "matmul, ordinary": ["aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear"],
    "attention, cpu": [
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    ],
    "attention, math": ["aten::_scaled_dot_product_attention_math"],
    "optimizer": ["Optimizer.step#AdamW.step", "aten::_fused_adamw_", "aten::_foreach_add_", "aten::addcdiv_"],
    "normalization": ["aten::native_layer_norm", "aten::native_layer_norm_backward"],
    "softmax and loss": ["aten::_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss_forward"],
    "embedding": ["aten::embedding", "aten::embedding_dense_backward", "aten::index_select"],
    "copy": ["aten::copy_", "aten::cat", "aten::clone"],
    "reduction": ["aten::sum", "aten::mean", "aten::var"],
    "element-wise": ["aten::add", "aten::mul", "aten::tanh", "aten::pow", "aten::gelu", "aten::masked_fill_"],
    "fused": ["graph_0_cpp_fused_add_native_layer_norm_3", "cpp_fused_add_0", "Torch-Compiled Region: 0/0"],
    "communication": ["gloo:all_reduce", "c10d::allreduce_", "DistributedDataParallel.forward"],
    "other": ["aten::transpose", "aten::empty"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in GPU.items() for name in names])
def test_kind_of_a_gpu_kernel(kind, name):
    assert kind_of(name, on_gpu=True) == kind
    assert kind_of(short_name(name), on_gpu=True) == kind  # a stored name can be classified again


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in CPU_OPERATORS.items() for name in names])
def test_kind_of_a_cpu_operator(kind, name):
    assert kind_of(name, on_gpu=False) == kind


def test_every_kind_is_one_that_a_record_knows():
    assert {kind for kind, _ in (*GPU_KINDS, *CPU_KINDS)} | {"other"} <= set(KERNEL_KINDS)
    assert set(GPU) | set(CPU_OPERATORS) == set(KERNEL_KINDS)


def test_a_cpu_step_never_shows_tensor_cores():
    assert not any("Tensor Cores" in kind for kind, _ in CPU_KINDS)


def test_a_matmul_that_inductor_wrote_is_on_tensor_cores_only_in_their_formats():
    rows = [
        kernel_row(name, 1, 2.0, on_gpu=True) for name in ("triton_tem_fused_mm_0", "nvjet_tst_64x64", "triton_poi_0")
    ]
    kinds = {
        recipe: [row["kind"] for row in in_format(rows, recipe)]
        for recipe in (TINY, TINY.but(matmul_precision="high"), TINY.but(precision="bfloat16_autocast"))
    }
    tensor, fused = "matmul, Tensor Cores", "fused"
    assert list(kinds.values()) == [
        ["matmul, ordinary", tensor, fused],
        [tensor, tensor, fused],
        [tensor, tensor, fused],
    ]


def test_names_are_cut_and_freed_of_noise():
    assert short_name("void at::native::reduce_kernel<512>(int)") == "reduce_kernel<512>(int)"
    assert short_name("aten::mm") == "aten::mm"
    long = short_name("void kernel<" + "x" * 500 + ">()")
    assert len(long) == 160 and long.startswith("kernel<") and long.endswith("…")


def step_calls(recipe):
    step = TrainingStep(recipe, draw_weights(recipe), CPU)
    [batch] = random_batches(recipe, 1)
    return lambda: step(iter([batch]))


def test_the_table_counts_what_a_step_runs():
    layers = TINY.num_layers
    table = {row["name"]: row for row in kernel_table(step_calls(TINY), CPU, steps=3)}
    # Forward, per layer: q, k, v without biases, and with biases the output and both feed-forward matmuls.
    assert table["aten::addmm"]["calls"] == 3 * layers
    # Backward needs two matmuls for each of these; the head and q, k, v have no bias: 1 + 3 per layer, forward.
    linear = 6 * layers + 1
    assert table["aten::mm"]["calls"] == 3 * layers + 1 + 2 * linear
    # Scores and mixing, forward once, backward twice each.
    assert table["aten::bmm"]["calls"] == 6 * layers
    assert table["aten::_softmax"]["calls"] == layers
    assert table["aten::embedding"]["calls"] == 2
    assert {row["kind"] for row in table.values()} <= set(KERNEL_KINDS)


def test_the_table_is_sorted_per_step_and_free_of_empty_rows():
    table = kernel_table(step_calls(TINY.but(attention="sdpa", layers="native")), CPU)
    times = [row["time_us"] for row in table]
    assert times == sorted(times, reverse=True) and min(times) > 0
    kinds = {row["kind"] for row in table}
    assert {"attention, cpu", "normalization", "matmul, ordinary", "optimizer"} <= kinds
    assert "softmax and loss" in kinds


def test_the_table_shows_which_optimizer_ran():
    names = {
        optimizer: {row["name"] for row in kernel_table(step_calls(TINY.but(optimizer=optimizer)), CPU)}
        for optimizer in ("for_loop", "fused")
    }
    assert "aten::_fused_adamw_" in names["fused"] and "aten::_fused_adamw_" not in names["for_loop"]
    assert "aten::addcdiv_" in names["for_loop"] and "aten::addcdiv_" not in names["fused"]


def test_on_a_gpu_only_kernels_are_rows_and_not_the_annotations_around_them(monkeypatch):
    from speedlab.measuring import kernels

    class Entry:
        def __init__(self, key, device_type, annotation, time_us):
            self.key, self.device_type, self.is_user_annotation = key, device_type, annotation
            self.count, self.self_device_time_total, self.self_cpu_time_total = 4, time_us, 1.0

    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    entries = [
        Entry("ampere_sgemm_128x64_tn", cuda, False, 80.0),
        Entry("Optimizer.step#AdamW.step", cuda, True, 5_000.0),
        Entry("aten::mm", cpu, False, 80.0),
        Entry("nvjet_tst_64x64", cuda, False, 90.0),
        Entry("nothing", cuda, False, 0.0),
    ]

    class Profiler:
        def __init__(self, **options):
            assert torch.profiler.ProfilerActivity.CUDA in options["activities"]

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def key_averages(self):
            return entries

    monkeypatch.setattr(kernels, "profile", Profiler)
    monkeypatch.setattr(kernels, "synchronize", lambda device: None)
    assert kernel_table(lambda: None, torch.device("cuda"), steps=2) == [
        {"name": "nvjet_tst_64x64", "kind": "matmul, Tensor Cores", "calls": 2.0, "time_us": 45.0},
        {"name": "ampere_sgemm_128x64_tn", "kind": "matmul, ordinary", "calls": 2.0, "time_us": 40.0},
    ]
