import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.runtime.ConnectMetrics;
import org.apache.kafka.connect.runtime.SinkConnectorConfig;
import org.apache.kafka.connect.runtime.errors.DeadLetterQueueReporter;
import org.apache.kafka.connect.runtime.errors.ErrorHandlingMetrics;
import org.apache.kafka.connect.runtime.errors.ErrorReporter;
import org.apache.kafka.connect.runtime.errors.ProcessingContext;
import org.apache.kafka.connect.runtime.errors.RetryWithToleranceOperator;
import org.apache.kafka.connect.runtime.errors.Stage;
import org.apache.kafka.connect.runtime.errors.ToleranceType;
import org.apache.kafka.connect.runtime.isolation.Plugins;
import org.apache.kafka.connect.runtime.standalone.StandaloneConfig;
import org.apache.kafka.connect.util.ConnectorTaskId;

/** Does what a Kafka Connect worker does for a sink task, with Connect's own error operator and reporter. */
final class Connect {
    public static void main(String[] arguments) throws Exception {
        var task = new ConnectorTaskId(arguments[3], 0);
        var metrics = new ErrorHandlingMetrics(task, new ConnectMetrics("worker", worker(arguments[0]), Time.SYSTEM, "bed"));
        var operator = new RetryWithToleranceOperator<ConsumerRecord<byte[], byte[]>>(
                0, 0, ToleranceType.ALL, Time.SYSTEM, metrics);
        ErrorReporter<ConsumerRecord<byte[], byte[]>> reporter = DeadLetterQueueReporter.createAndSetup(
                Map.of("bootstrap.servers", arguments[0]), task, sink(arguments), producer(arguments[0]), metrics);
        operator.reporters(List.of(reporter));
        var work = new Thread(() -> consume(arguments, operator));
        work.setDaemon(true);
        work.start();
        Orders.waitForEndOfInput();
        Runtime.getRuntime().halt(0);
    }

    private static void consume(String[] arguments, RetryWithToleranceOperator<ConsumerRecord<byte[], byte[]>> operator) {
        Map<String, Object> settings = Map.of(
                ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
                ConsumerConfig.GROUP_ID_CONFIG, "connect-" + arguments[3],
                ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(arguments[1]));
        while (true) {
            for (var record : consumer.poll(Duration.ofSeconds(1))) {
                take(record, operator);
            }
        }
    }

    private static void take(
            ConsumerRecord<byte[], byte[]> record,
            RetryWithToleranceOperator<ConsumerRecord<byte[], byte[]>> operator) {
        var context = new ProcessingContext<>(record);
        operator.execute(context, () -> {
            Orders.check("read", record.value(), record.headers());
            return record;
        }, Stage.VALUE_CONVERTER, Orders.class);
        if (!context.failed()) {
            put(record, context, operator);
        }
    }

    /** Reports a failed record like the errant record reporter of a task. */
    private static void put(
            ConsumerRecord<byte[], byte[]> record,
            ProcessingContext<ConsumerRecord<byte[], byte[]>> context,
            RetryWithToleranceOperator<ConsumerRecord<byte[], byte[]>> operator) {
        try {
            Orders.check("work", record.value(), record.headers());
        } catch (RuntimeException error) {
            operator.executeFailed(context, Stage.TASK_PUT, Orders.class, error);
        }
    }

    private static StandaloneConfig worker(String bootstrap) {
        String converter = "org.apache.kafka.connect.json.JsonConverter";
        return new StandaloneConfig(Map.of(
                "bootstrap.servers", bootstrap,
                "key.converter", converter,
                "value.converter", converter,
                "offset.storage.file.filename", "unused"));
    }

    private static SinkConnectorConfig sink(String[] arguments) {
        var plugins = new Plugins(Map.of("plugin.discovery", "service_load"));
        return new SinkConnectorConfig(plugins, Map.of(
                "name", arguments[3],
                "connector.class", "org.apache.kafka.connect.tools.VerifiableSinkConnector",
                "topics", arguments[1],
                "errors.tolerance", "all",
                "errors.deadletterqueue.topic.name", arguments[2],
                "errors.deadletterqueue.topic.replication.factor", "1",
                "errors.deadletterqueue.context.headers.enable", "true"));
    }

    private static Map<String, Object> producer(String bootstrap) {
        var settings = new HashMap<String, Object>();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        return settings;
    }
}
